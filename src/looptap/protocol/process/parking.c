/* The module looptap._parking: libzmq's abort() stops one thread of looptap, not the job.

   libzmq calls abort() where it finds its descriptors closed, or none left for a client. abort() raises SIGABRT on the
   thread that called it, and holds no lock while it does. So this handler can stop that thread there for ever, if it is
   one of looptap's: a thread of libzmq under `NAME`, or one that has called claim(). In every other case SIGABRT does
   what it did before. Only with glibc, which can say who has called abort(). */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PREFIX 1901 /* libzmq puts this number before the names of a context's threads */
#define NAME "1901/ZMQ"
#define MAX_FRAMES 48

#if PY_VERSION_HEX < 0x030D0000
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

static struct sigaction former;
static PyObject *listener; /* called with the number of a claimed thread that was stopped */
static atomic_int parked;
static __thread bool claimed;

static bool
is_ours(void)
{
    char name[16] = "";
    return claimed || (prctl(PR_GET_NAME, name) == 0 && strncmp(name, NAME, strlen(NAME)) == 0);
}

/* Not free(), for example, which aborts where the job has damaged the heap. */
static bool
is_of_libzmq(void)
{
    void *frames[MAX_FRAMES];
    int count = backtrace(frames, MAX_FRAMES);
    bool aborts = false;
    for (int i = 0; i < count; i++) {
        Dl_info found;
        if (dladdr(frames[i], &found) == 0) {
            aborts = false;
            continue;
        }
        if (aborts && found.dli_fname != NULL && strstr(found.dli_fname, "zmq") != NULL) {
            return true;
        }
        aborts = found.dli_sname != NULL && strcmp(found.dli_sname, "abort") == 0;
    }
    return false;
}

static int
report(void *thread)
{
    PyObject *answer = PyObject_CallFunction(listener, "n", (Py_ssize_t)(intptr_t)thread);
    if (answer == NULL) {
        PyErr_WriteUnraisable(listener);
    }
    Py_XDECREF(answer);
    return 0;
}

static void
park(void)
{
    atomic_fetch_add(&parked, 1);
    if (claimed) {
        Py_AddPendingCall(report, (void *)(intptr_t)syscall(SYS_gettid));
        PyThreadState *state = PyThreadState_GetUnchecked();
        if (state != NULL && state == PyGILState_GetThisThreadState()) { /* it has the GIL, inside a call of libzmq */
            PyEval_SaveThread();
        }
    }
    for (;;) {
        pause();
    }
}

static void
on_abort(int number, siginfo_t *info, void *Py_UNUSED(context))
{
    int error = errno;
    bool raised_here = info->si_code == SI_TKILL && info->si_pid == getpid();
    if (raised_here && is_ours() && is_of_libzmq()) {
        park();
    }
    /* What came before handles the signal, with its own mask and stack, once this one returns. */
    sigaction(number, &former, NULL);
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), number, info);
    errno = error;
}

static PyObject *
handle(PyObject *Py_UNUSED(module), PyObject *call)
{
    struct sigaction present, ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK};
    ours.sa_sigaction = on_abort;
    sigfillset(&ours.sa_mask);
    Py_XSETREF(listener, Py_NewRef(call));
    if (sigaction(SIGABRT, NULL, &present) == 0 && present.sa_sigaction != on_abort) {
        void *frame;
        backtrace(&frame, 1); /* the first call loads a library, which a handler must not */
        sigaction(SIGABRT, &ours, &former);
    }
    Py_RETURN_NONE;
}

static PyObject *
claim(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    claimed = true;
    Py_RETURN_NONE;
}

static PyObject *
count_parked(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    return PyLong_FromLong(atomic_load(&parked));
}

static PyMethodDef parking_methods[] = {
    {"handle", handle, METH_O, "Stop looptap's threads where libzmq aborts; report each claimed one to the argument."},
    {"claim", claim, METH_NOARGS, "Make the calling thread one of looptap's."},
    {"count_parked", count_parked, METH_NOARGS, "Return how many threads have been stopped."},
    {NULL},
};

static PyModuleDef parking_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "looptap._parking",
    .m_doc = "libzmq's abort() stops one thread of looptap, not the job.",
    .m_size = -1,
    .m_methods = parking_methods,
};

PyMODINIT_FUNC
PyInit__parking(void)
{
    PyObject *module = PyModule_Create(&parking_module);
    if (module != NULL && PyModule_AddIntConstant(module, "PREFIX", PREFIX) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
