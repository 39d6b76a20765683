/* SourceState and PlanState: what the tap reads and writes of an event source and of its plan.

   They are the base classes of EventSource and EvaluationPlan; choice.py has the same in pure Python, and says what each
   attribute is. */

#include "tap.h"

static PyMemberDef source_members[] = {
    {"number", T_LONGLONG, offsetof(SourceState, number), 0, NULL},
    {"group_start", T_LONGLONG, offsetof(SourceState, group_start), 0, NULL},
    {"groups_ended", T_LONGLONG, offsetof(SourceState, groups_ended), 0, NULL},
    {"last_deferred", T_LONGLONG, offsetof(SourceState, last_deferred), 0, NULL},
    {"last_time", T_DOUBLE, offsetof(SourceState, last_time), 0, NULL},
    {"has_work", T_BOOL, offsetof(SourceState, has_work), 0, NULL},
    {"only_groups", T_BOOL, offsetof(SourceState, only_groups), 0, NULL},
    {"inner_groups", T_OBJECT_EX, offsetof(SourceState, inner_groups), 0, NULL},
    {"queries", T_OBJECT_EX, offsetof(SourceState, queries), 0, NULL},
    {"clock", T_OBJECT_EX, offsetof(SourceState, clock), 0, NULL},
    {"capturing", T_OBJECT_EX, offsetof(SourceState, capturing), 0, NULL},
    {"lock", T_OBJECT_EX, offsetof(SourceState, lock), 0, NULL},
    {NULL},
};

static TapState *
state_behind(PyObject *op)
{
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(op), &tap_module);
    return module == NULL ? NULL : PyModule_GetState(module);
}

static PyObject *
get_shortcut(PyObject *op, void *unused)
{
    (void)unused;
    PyObject *plan = ((SourceState *)op)->shortcut;
    if (plan == NULL) {
        PyErr_SetString(PyExc_AttributeError, "shortcut");
    }
    return Py_XNewRef(plan);
}

/* What is set is checked here, so that an event need not. */
static int
set_shortcut(PyObject *op, PyObject *plan, void *unused)
{
    (void)unused;
    SourceState *self = (SourceState *)op;
    TapState *state = state_behind(op);
    if (state == NULL) {
        return -1;
    }
    if (plan != NULL && plan != Py_None && !PyObject_TypeCheck(plan, state->plan_type)) {
        PyErr_SetString(PyExc_TypeError, "a shortcut is a plan, or None.");
        return -1;
    }
    Py_XSETREF(self->shortcut, Py_XNewRef(plan));
    return 0;
}

static PyGetSetDef source_getset[] = {
    {"shortcut", get_shortcut, set_shortcut, NULL, NULL},
    {NULL},
};

static int
source_traverse(PyObject *op, visitproc visit, void *arg)
{
    SourceState *self = (SourceState *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->inner_groups);
    Py_VISIT(self->queries);
    Py_VISIT(self->shortcut);
    Py_VISIT(self->clock);
    Py_VISIT(self->capturing);
    Py_VISIT(self->lock);
    return 0;
}

static int
source_clear(PyObject *op)
{
    SourceState *self = (SourceState *)op;
    Py_CLEAR(self->inner_groups);
    Py_CLEAR(self->queries);
    Py_CLEAR(self->shortcut);
    Py_CLEAR(self->clock);
    Py_CLEAR(self->capturing);
    Py_CLEAR(self->lock);
    return 0;
}

static void
source_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)source_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot source_slots[] = {
    {Py_tp_doc, "What the tap reads and writes of an event source."},
    {Py_tp_members, source_members},
    {Py_tp_getset, source_getset},
    {Py_tp_traverse, source_traverse},
    {Py_tp_clear, source_clear},
    {Py_tp_dealloc, source_dealloc},
    {0, NULL},
};

static PyType_Spec source_spec = {
    .name = "looptap._tap.SourceState",
    .basicsize = sizeof(SourceState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = source_slots,
};

/* ------------------------------------------------------------ PlanState */

static PyMemberDef plan_members[] = {
    {"rows", T_OBJECT_EX, offsetof(PlanState, rows), READONLY, NULL},
    {"names", T_OBJECT_EX, offsetof(PlanState, names), READONLY, NULL},
    {"limit", T_PYSSIZET, offsetof(PlanState, limit), 0, NULL},
    {"every", T_PYSSIZET, offsetof(PlanState, every), 0, NULL},
    {"rest_number", T_LONGLONG, offsetof(PlanState, rest_number), 0, NULL},
    {"rest_time", T_DOUBLE, offsetof(PlanState, rest_time), 0, NULL},
    {"passed_to", T_LONGLONG, offsetof(PlanState, passed_to), 0, NULL},
    {"stale", T_BOOL, offsetof(PlanState, stale), 0, NULL},
    {NULL},
};

/* keep(names, rows): once, what rows are made of, and where they go. */
static PyObject *
plan_keep(PyObject *op, PyObject *args)
{
    PlanState *self = (PlanState *)op;
    PyObject *names, *rows;
    if (!PyArg_ParseTuple(args, "O!O:keep", &PyTuple_Type, &names, &rows)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(names, i))) {
            PyErr_SetString(PyExc_TypeError, "names are str.");
            return NULL;
        }
    }
    TapState *state = state_behind(op);
    if (state == NULL) {
        return NULL;
    }
    if (self->names != NULL) {
        PyErr_SetString(PyExc_TypeError, "the names of a plan do not change.");
        return NULL;
    }
    self->count = PyTuple_GET_SIZE(names);
    self->names = Py_NewRef(names);
    self->rows = Py_NewRef(rows);
    if (Py_TYPE(rows) == state->rows_type && ((Rows *)rows)->width == HEADER_COUNT + self->count) {
        self->kept = self->count <= MAX_NAMES ? (Rows *)rows : NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef plan_methods[] = {
    {"keep", plan_keep, METH_VARARGS, NULL},
    {NULL},
};

static int
plan_traverse(PyObject *op, visitproc visit, void *arg)
{
    PlanState *self = (PlanState *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->rows);
    Py_VISIT(self->names);
    Py_VISIT(self->keywords);
    return 0;
}

static int
plan_clear(PyObject *op)
{
    PlanState *self = (PlanState *)op;
    self->kept = NULL;
    Py_CLEAR(self->rows);
    Py_CLEAR(self->names);
    Py_CLEAR(self->keywords);
    return 0;
}

static void
plan_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)plan_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, "What the tap reads and writes of a plan."},
    {Py_tp_members, plan_members},
    {Py_tp_methods, plan_methods},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_clear, plan_clear},
    {Py_tp_dealloc, plan_dealloc},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "looptap._tap.PlanState",
    .basicsize = sizeof(PlanState),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = plan_slots,
};
