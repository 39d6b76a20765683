/* Lock: threading.RLock, which C code can ask whether anybody holds it (`is_held` in tap.h).

   Taking it and counting happen in one C function: another thread or Ctrl-C finds both done, or neither. */

#include "tap.h"

static Py_ssize_t *
holders(const TapState *state, PyObject *lock)
{
    return (Py_ssize_t *)((char *)lock + state->lock_offset);
}

static TapState *
state_of(PyTypeObject *cls)
{
    TapState *state = PyType_GetModuleState(cls);
    if (state == NULL && !PyErr_Occurred()) { /* the interpreter ends, and has cleared the type */
        PyErr_SetString(PyExc_RuntimeError, "looptap's tap has been unloaded.");
    }
    return state;
}

static PyObject *
forward(PyObject *method, PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    PyObject *all[4];
    Py_ssize_t given = count + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    if (given > 3) {
        return PyErr_Format(PyExc_TypeError, "a lock takes two arguments at most (%zd given)", given);
    }
    all[0] = self;
    for (Py_ssize_t i = 0; i < given; i++) {
        all[i + 1] = args[i];
    }
    return PyObject_Vectorcall(method, all, count + 1, kwnames);
}

static PyObject *
lock_acquire(PyObject *self, PyTypeObject *cls, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    TapState *state = state_of(cls);
    PyObject *taken = state == NULL ? NULL : forward(state->lock_acquire, self, args, count, kwnames);
    if (taken == Py_True) {
        ++*holders(state, self);
    }
    return taken;
}

static PyObject *
lock_release(PyObject *self, PyTypeObject *cls, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    TapState *state = state_of(cls);
    PyObject *released = state == NULL ? NULL : forward(state->lock_release, self, args, count, kwnames);
    if (released != NULL) {
        --*holders(state, self);
    }
    return released;
}

static PyObject *
lock_exit(PyObject *self, PyTypeObject *cls, PyObject *const *args, Py_ssize_t count, PyObject *kwnames)
{
    (void)args;
    (void)count;
    (void)kwnames;
    return lock_release(self, cls, NULL, 0, NULL);
}

#define METHOD(function) (PyCFunction)(void (*)(void))(function), METH_METHOD | METH_FASTCALL | METH_KEYWORDS

static PyMethodDef lock_methods[] = {
    {"acquire", METHOD(lock_acquire), "As of threading.RLock."},
    {"release", METHOD(lock_release), "As of threading.RLock."},
    {"__enter__", METHOD(lock_acquire), "As of threading.RLock."},
    {"__exit__", METHOD(lock_exit), "As of threading.RLock."},
    {NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, "threading.RLock, which C code can ask whether anybody holds it."},
    {Py_tp_methods, lock_methods},
    {0, NULL},
};

/* Make the type, a subclass of threading.RLock with a count behind what that holds. */
static PyTypeObject *
make_lock_type(PyObject *module, TapState *state)
{
    PyObject *threads = PyImport_ImportModule("_thread");
    PyObject *below = threads == NULL ? NULL : PyObject_GetAttrString(threads, "RLock");
    Py_XDECREF(threads);
    if (below == NULL) {
        return NULL;
    }
    PyTypeObject *type = NULL;
    if (!PyType_Check(below) || ((PyTypeObject *)below)->tp_itemsize != 0) {
        PyErr_SetString(PyExc_TypeError, "this interpreter's RLock cannot be extended.");
    }
    else {
        Py_ssize_t size = ((PyTypeObject *)below)->tp_basicsize, unit = sizeof(Py_ssize_t);
        state->lock_offset = (size + unit - 1) / unit * unit;
        state->lock_acquire = PyObject_GetAttrString(below, "acquire");
        state->lock_release = PyObject_GetAttrString(below, "release");
        if (state->lock_acquire != NULL && state->lock_release != NULL) {
            PyType_Spec spec = {
                .name = "looptap._tap.Lock",
                .basicsize = (int)(state->lock_offset + unit),
                .flags = Py_TPFLAGS_DEFAULT,
                .slots = lock_slots,
            };
            type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &spec, below);
        }
    }
    Py_DECREF(below);
    return type;
}
