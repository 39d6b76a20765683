/* The module looptap._tap: its types, and what they share.

   It is compiled as one, with the other files in it: an event then runs in a few pieces of code that stand together,
   which counts where a training step has left the caches full of its own. */

#include "tap.h"

#include "rows.c"
#include "tensors.c"
#include "source.c"
#include "lock.c"
#include "emit.c"
#include "sliding.c"

static int
add(PyObject *module, PyTypeObject *type, PyTypeObject **place)
{
    *place = type;
    return type == NULL ? -1 : PyModule_AddType(module, type);
}

static int
tap_exec(PyObject *module)
{
    TapState *state = PyModule_GetState(module);
    struct {
        PyType_Spec *spec;
        PyTypeObject **place;
    } const types[] = {
        {&source_spec, &state->source_type},
        {&plan_spec, &state->plan_type},
        {&rows_spec, &state->rows_type},
        {&emit_spec, &state->emit_type},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (add(module, (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL), types[i].place) < 0) {
            return -1;
        }
    }
    if (add(module, make_lock_type(module, state), &state->lock_type) < 0) {
        return -1;
    }
    state->initialized_name = PyUnicode_InternFromString("_initialized");
    if (state->initialized_name == NULL) {
        return -1;
    }
    PyObject *time = PyImport_ImportModule("time");
    state->monotonic = time == NULL ? NULL : PyObject_GetAttrString(time, "monotonic");
    Py_XDECREF(time);
    return state->monotonic == NULL ? -1 : PyModule_AddIntConstant(module, "INTERFACE_VERSION", INTERFACE_VERSION);
}

static int
tap_traverse(PyObject *module, visitproc visit, void *arg)
{
    TapState *state = PyModule_GetState(module);
    Py_VISIT(state->source_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->rows_type);
    Py_VISIT(state->lock_type);
    Py_VISIT(state->emit_type);
    Py_VISIT(state->lock_acquire);
    Py_VISIT(state->lock_release);
    Py_VISIT(state->monotonic);
    Py_VISIT(state->tensor);
    Py_VISIT(state->is_negated);
    Py_VISIT(state->count_modes);
    Py_VISIT(state->exchange);
    Py_VISIT(state->cuda);
    return 0;
}

/* Only when the module is freed: its types use all of this as long as there is an object of theirs, which keeps the
   module alive. */
static void
tap_free(void *op)
{
    TapState *state = PyModule_GetState((PyObject *)op);
    if (state == NULL) {
        return;
    }
    Py_CLEAR(state->source_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->rows_type);
    Py_CLEAR(state->lock_type);
    Py_CLEAR(state->emit_type);
    Py_CLEAR(state->lock_acquire);
    Py_CLEAR(state->lock_release);
    Py_CLEAR(state->monotonic);
    Py_CLEAR(state->tensor);
    Py_CLEAR(state->is_negated);
    Py_CLEAR(state->count_modes);
    Py_CLEAR(state->exchange);
    Py_CLEAR(state->cuda);
    Py_CLEAR(state->initialized_name);
}

static PyMethodDef tap_methods[] = {
    {"know_tensors", know_tensors, METH_VARARGS, "Take the type of tensors, and what reads them."},
    {"know_cuda", know_cuda, METH_O, "Take the names of torch.cuda, a dict."},
    {"slide", slide, METH_VARARGS, "Return the sums of a window that slides, and what it is then."},
    {NULL},
};

static PyModuleDef_Slot tap_slots[] = {
    {Py_mod_exec, tap_exec},
    {0, NULL},
};

static PyModuleDef tap_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "looptap._tap",
    .m_doc = "The compiled tap: an event without a frame and without a dict.",
    .m_size = sizeof(TapState),
    .m_methods = tap_methods,
    .m_slots = tap_slots,
    .m_traverse = tap_traverse,
    .m_free = tap_free,
};

PyMODINIT_FUNC
PyInit__tap(void)
{
    return PyModuleDef_Init(&tap_module);
}
