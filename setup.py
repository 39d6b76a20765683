"""Builds the compiled modules where a C compiler is, and the file for LOOPTAP_AUTO.

pyproject.toml has the rest. LOOPTAP_PURE=1 leaves them out, which makes a wheel for any machine.
"""

import glob
import os
import sys
import sysconfig

from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

wanted = (
    os.environ.get("LOOPTAP_PURE", "0") in ("", "0")
    and sys.implementation.name == "cpython"
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
whole = "src/looptap/agent/loop/tap/module.c"  # which includes the other files
parts = glob.glob("src/looptap/agent/loop/tap/*.[ch]")
tap = Extension("looptap._tap", [whole], depends=parts, optional=True)  # optional: no compiler, no error
parking = Extension("looptap._parking", ["src/looptap/protocol/process/parking.c"], optional=True)  # glibc only
HARDENED = {
    "linux": (
        ["-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"],
        ["-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack"],
    ),
    "darwin": (["-fstack-protector-strong"], []),
}
"""Options of compiler and linker against faults in C code, by platform."""
START_FILE = "looptap_auto.pth"


class BuildStartFile(Command):
    """Puts a file beside the package that Python runs as it starts.

    In an editable install, too: there the package stays in its folder, and this file goes to site-packages.
    """

    editable_mode = False
    """True in an editable install: setuptools sets it."""

    def initialize_options(self):
        """Have no options."""
        self.build_lib = None

    def finalize_options(self):
        """Take the folder of the build."""
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self):
        """Copy the file."""
        place = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        self.mkpath(place)
        self.copy_file(self.get_source_files()[0], os.path.join(place, START_FILE))

    def get_source_files(self):
        """Return what belongs into an sdist."""
        return [os.path.join("src", START_FILE)]

    def get_outputs(self):
        """Return what a wheel gets."""
        return [] if self.editable_mode else [os.path.join(self.build_lib, START_FILE)]

    def get_output_mapping(self):
        """Return the outputs that could be links."""
        return {}


class BuildCompiled(build_ext):
    """Builds compiled modules hardened, and without the paths of libraries of this machine."""

    def build_extension(self, extension):
        """Build with the options of this platform."""
        extension.extra_compile_args, extension.extra_link_args = HARDENED.get(sys.platform, ([], []))
        linker = getattr(self.compiler, "linker_so", None)
        if linker:  # what Python was linked with, such as the folder of its own library
            self.compiler.linker_so = [word for word in linker if not word.startswith("-Wl,-rpath")]
        super().build_extension(extension)


class Build(build):
    """The build of setuptools, and that file."""

    sub_commands = [*build.sub_commands, ("build_start_file", None)]  # noqa: RUF012 - it is setuptools' attribute


setup(
    ext_modules=[tap, *([parking] if sys.platform == "linux" else [])] if wanted else [],
    cmdclass={"build": Build, "build_ext": BuildCompiled, "build_start_file": BuildStartFile},
)
