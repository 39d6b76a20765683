/* Emit stands in for the Python function `Agent.emit`, without a frame and without a dict.

   An event that nothing waits for is counted; of one that only has to be kept, the numbers go to the rows of the plan.
   Whatever else there is to do is left to the function, which stays the reference: the call is passed on, arguments as
   they came. So the function alone answers for errors, first events, queries and commands.

   In everything but a call an Emit is that function: it says that it is one (`__class__`), and its attributes are the
   function's. That gives help(), signatures, pickling and tests the same as without the tap; and torch.compile, which
   cannot look into C, traces the Python code, and finds that it does nothing there.

   Signals, other threads and the cyclic garbage collector come only where Python code runs or objects are made that the
   collector follows. None of it happens between the last checks and what follows from them: so an event is counted and
   kept as one step, or not at all. */

#include "tap.h"

#ifdef __linux__
#include <time.h>
#endif

static int
has_no_queries(const SourceState *self)
{
    return self->queries != NULL && PyTuple_CheckExact(self->queries) && PyTuple_GET_SIZE(self->queries) == 0;
}

/* Count an event that nothing waits for, and end the groups of the types inside; 0 if something does wait. */
static int
count_idle(SourceState *self, PyTypeObject *source_type)
{
    if (!self->has_work) {
        self->number++;
        return 1;
    }
    PyObject *inner = self->inner_groups;
    if (!self->only_groups || inner == NULL || !PyTuple_CheckExact(inner)) {
        return 0;
    }
    Py_ssize_t size = PyTuple_GET_SIZE(inner);
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *one = PyTuple_GET_ITEM(inner, i);
        int is_source = Py_TYPE(one) == Py_TYPE(self) || PyObject_TypeCheck(one, source_type);
        if (!is_source || !has_no_queries((SourceState *)one)) {
            return 0;
        }
    }
    self->number++;
    for (Py_ssize_t i = 0; i < size; i++) {
        SourceState *one = (SourceState *)PyTuple_GET_ITEM(inner, i);
        one->group_start = one->number;
        one->groups_ended++;
        one->last_time = 0.0;
    }
    return 1;
}

/* ------------------------------------------------------------ an event that only has to be kept */

typedef enum { LEFT, DONE, FAILED } Outcome;

static int
leave_to_function(void)
{
    if (PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_Clear();
    }
    return 0;
}

/* The time of an event, by the clock of its source; LEFT if only Python code can tell it. */
static Outcome
time_of(const TapState *state, const SourceState *source, double *now)
{
#ifdef __linux__ /* where time.monotonic reads this clock, and rounds it like that */
    if (source->clock == state->monotonic) {
        struct timespec at;
        if (clock_gettime(CLOCK_MONOTONIC, &at) == 0) {
            *now = at.tv_nsec ? (double)((int64_t)at.tv_sec * 1000000000 + at.tv_nsec) / 1e9 : (double)at.tv_sec;
            return DONE;
        }
    }
#endif
    if (source->clock == NULL || !PyCFunction_CheckExact(source->clock)) {
        return LEFT;
    }
    PyObject *clock = Py_NewRef(source->clock);
    PyObject *seconds = PyObject_CallNoArgs(clock);
    Py_DECREF(clock);
    if (seconds == NULL) {
        return leave_to_function() < 0 ? FAILED : LEFT;
    }
    int fits = PyFloat_CheckExact(seconds);
    if (fits) {
        *now = PyFloat_AS_DOUBLE(seconds);
    }
    Py_DECREF(seconds);
    return fits ? DONE : LEFT;
}

/* know_cuda(names): the dict of the module torch.cuda. */
static PyObject *
know_cuda(PyObject *module, PyObject *names)
{
    if (!PyDict_CheckExact(names)) {
        return PyErr_Format(PyExc_TypeError, "the names of a module are a dict, not %.100R.", Py_TYPE(names));
    }
    TapState *state = PyModule_GetState(module);
    PyObject *before = state->cuda;
    state->cuda = Py_NewRef(names);
    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* 1 if a CUDA graph is being captured, where an event only counts; 0 if not; -1 if that cannot be told. */
static int
is_captured(const TapState *state, const SourceState *source)
{
    if (source->capturing == Py_None) {
        return 0;
    }
    if (state->cuda != NULL && PyDict_GetItemWithError(state->cuda, state->initialized_name) == Py_False) {
        return 0; /* torch is built for CUDA, and the job does not use it: no Python code is needed to tell */
    }
    PyErr_Clear();
    PyObject *capturing = Py_XNewRef(source->capturing);
    PyObject *answer = capturing == NULL ? NULL : PyObject_CallNoArgs(capturing);
    Py_XDECREF(capturing);
    int captured = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return captured;
}

/* Of two exact str. */
static int
is_same(PyObject *text, PyObject *other)
{
    return text == other || PyUnicode_Compare(text, other) == 0;
}

/* Find where among the keywords the names of the plan stand, as at the event before if the call is the same. */
static int
find_places(PlanState *plan, PyObject *keywords, unsigned char *places)
{
    if (keywords != NULL && keywords == plan->keywords) {
        memcpy(places, plan->places, plan->count);
        return 1;
    }
    Py_ssize_t given = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (given > UCHAR_MAX) {
        return 0;
    }
    for (Py_ssize_t k = 0; k < given; k++) {
        if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(keywords, k))) {
            return 0; /* its class may say what it equals */
        }
    }
    for (Py_ssize_t n = 0; n < plan->count; n++) {
        PyObject *name = PyTuple_GET_ITEM(plan->names, n);
        Py_ssize_t k = 0;
        while (k < given && !is_same(PyTuple_GET_ITEM(keywords, k), name)) {
            k++;
        }
        if (k == given) {
            return 0;
        }
        places[n] = (unsigned char)k;
    }
    if (keywords != NULL) {
        PyObject *before = plan->keywords;
        plan->keywords = Py_NewRef(keywords);
        memcpy(plan->places, places, plan->count);
        Py_XDECREF(before); /* a tuple of text: nothing runs */
    }
    return 1;
}

/* Whether a text may wait among thousands of others: MAX_TEXT_LENGTH of looptap.streams.language.copyable. */
static int
is_short_text(PyObject *object)
{
    return PyUnicode_CheckExact(object) && PyUnicode_GET_LENGTH(object) <= 128;
}

/* Read the numbers of an event; LEFT if one of them is for the function to read, or to refuse. */
static Outcome
read_values(const TapState *state, PyObject *const *given, const unsigned char *places, Py_ssize_t count, Value *values)
{
    for (Py_ssize_t n = 0; n < count; n++) {
        PyObject *one = given[places[n]];
        if (Py_TYPE(one) == state->tensor) {
            int read = read_tensor(state, one, &values[n]);
            if (read <= 0) {
                return read < 0 ? FAILED : LEFT;
            }
            continue;
        }
        values[n] = value_of(one);
        if (values[n].kind == OBJECT && one != Py_None && !is_short_text(one)) {
            return LEFT;
        }
    }
    return DONE;
}

/* Whether a query is to be evaluated at the event, if the purse pays for it. */
static int
is_due(const PlanState *plan, long long number)
{
    return plan->every > 0 && number % plan->every == 0;
}

/* Whether all that an event entails is to be kept: true up to the next Python code, or other thread. */
static int
is_only_kept(const TapState *state, const SourceState *source, const PlanState *plan, double now)
{
    long long number = source->number + 1;
    return source->shortcut == (PyObject *)plan && !plan->stale && (plan->kept != NULL || plan->rows == Py_None) &&
           source->has_work && source->lock != NULL && Py_TYPE(source->lock) == state->lock_type &&
           !is_held(state, source->lock) &&
           (!is_due(plan, number) || (number < plan->rest_number && now < plan->rest_time));
}

/* Ctrl-C came while code of the host's was reading a value: count the event as missed. The error stays. */
static void
miss(SourceState *source)
{
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *done = PyObject_CallMethod((PyObject *)source, "miss", NULL);
    Py_XDECREF(done);
    PyErr_Clear();
    PyErr_Restore(type, error, traceback);
}

/* Keep the numbers of an event. `given` are its observables, of which `keywords` are the names. */
static Outcome
keep(const TapState *state, SourceState *source, PlanState *plan, PyObject *const *given, PyObject *keywords,
     int *announce)
{
    Value values[MAX_NAMES];
    unsigned char places[MAX_NAMES];
    double now;
    Outcome outcome = time_of(state, source, &now);
    if (outcome != DONE) {
        return outcome;
    }
    if (!is_only_kept(state, source, plan, now)) {
        return LEFT;
    }
    int captured = is_captured(state, source);
    if (captured < 0) {
        return leave_to_function() < 0 ? FAILED : LEFT;
    }
    if (captured) {
        source->number++;
        return DONE;
    }
    if (!find_places(plan, keywords, places)) {
        return LEFT;
    }
    outcome = read_values(state, given, places, plan->count, values);
    if (outcome == FAILED) {
        miss(source);
    }
    if (outcome != DONE) {
        return outcome;
    }
    if (!is_only_kept(state, source, plan, now)) { /* again: reading may have run other code */
        return LEFT;
    }
    Rows *rows = plan->kept;
    if (rows != NULL) {
        if (rows_append(rows, source->number + 1, now, source->group_start, NULL, values) < 0) {
            return leave_to_function() < 0 ? FAILED : LEFT;
        }
        source->last_deferred = source->number + 1;
        *announce = rows->count * rows->width > plan->limit;
    }
    source->number++;
    source->last_time = now;
    if (is_due(plan, source->number)) {
        plan->passed_to = source->number;
    }
    return DONE;
}

/* ------------------------------------------------------------ Emit */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function; /* the Python function that this stands in for */
    PyObject *module;
    TapState *state;  /* of the module */
    PyObject *agent;  /* the first agent, borrowed: `alive` clears it when the agent dies; or NULL */
    PyObject *alive;  /* a weak reference to it */
    PyObject *types;  /* its `_types`, a dict of its event sources by name */
    PyObject *event;  /* the name that came last, and */
    PyObject *source; /* its source, or both NULL */
    PyObject *types_name;
    PyObject *kept_name;
    PyObject *uncounted_name;
    PyObject *forget_name;
    PyObject *weakrefs;
    int shortcut; /* 0 once the function has got other code */
} Emit;

/* Forget the agent: it dies, or has got other sources. The callback of a weak reference, too. All is forgotten before
   anything is freed: what that runs may emit, and have the next agent remembered. */
static PyObject *
emit_forget(PyObject *op, PyObject *unused)
{
    (void)unused;
    Emit *self = (Emit *)op;
    PyObject *const parts[] = {self->event, self->source, self->types, self->alive};
    self->agent = self->event = self->source = self->types = self->alive = NULL;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        Py_XDECREF(parts[i]);
    }
    Py_RETURN_NONE;
}

/* Keep the sources of the first agent at hand; others are asked for theirs at each event. -1 with an error. */
static int
remember_agent(Emit *self, PyObject *agent)
{
    PyObject *forget = PyObject_GenericGetAttr((PyObject *)self, self->forget_name);
    PyObject *alive = forget == NULL ? NULL : PyWeakref_NewRef(agent, forget);
    Py_XDECREF(forget);
    PyObject *types = alive == NULL ? NULL : PyObject_GetAttr(agent, self->types_name);
    /* Making objects may run the garbage collector, and by it other code and threads: what they leave is looked at
       after that, and between here and the end there is nothing of the kind. */
    if (types == NULL || !PyDict_CheckExact(types) || self->agent != NULL) {
        int failed = leave_to_function(); /* an object without weak references, or without sources */
        Py_XDECREF(types);
        Py_XDECREF(alive);
        return failed;
    }
    self->agent = agent;
    self->types = types;
    self->alive = alive;
    return 0;
}

/* The source of this event; NULL, without an error but for Ctrl-C, if the function has to find it. */
static SourceState *
find_source(Emit *self, PyObject *agent, PyObject *event)
{
    if (self->agent == NULL && remember_agent(self, agent) < 0) {
        return NULL;
    }
    PyObject *types = agent == self->agent ? Py_NewRef(self->types) : PyObject_GetAttr(agent, self->types_name);
    PyObject *source = types != NULL && PyDict_CheckExact(types) ? PyDict_GetItemWithError(types, event) : NULL;
    if (source == NULL || !PyObject_TypeCheck(source, self->state->source_type)) {
        Py_XDECREF(types);
        (void)leave_to_function(); /* no agent, or half built */
        return NULL;
    }
    Py_INCREF(source);
    if (agent == self->agent && types == self->types) {
        PyObject *const before[] = {self->event, self->source};
        self->event = Py_NewRef(event);
        self->source = Py_NewRef(source);
        Py_XDECREF(before[0]);
        Py_XDECREF(before[1]);
    }
    Py_DECREF(types);
    return (SourceState *)source;
}

/* An event of a known type; LEFT if the function has to deliver it. */
static Outcome
raise_event(Emit *self, SourceState *source, PyObject *const *args, PyObject *kwnames)
{
    const TapState *state = self->state;
    if (count_idle(source, state->source_type)) {
        return DONE;
    }
    PyObject *plan = source->shortcut;
    if (plan == NULL || plan == Py_None) {
        return LEFT;
    }
    int announce = 0;
    Py_INCREF(plan);
    Outcome outcome = keep(state, source, (PlanState *)plan, args + 2, kwnames, &announce);
    if (announce) { /* rare: few events wake the I/O thread, or evaluate what has piled up */
        PyObject *done = PyObject_CallMethodObjArgs(args[0], self->kept_name, source, plan, NULL);
        outcome = DONE;
        if (done == NULL && PyErr_ExceptionMatches(PyExc_RecursionError)) {
            PyErr_Clear(); /* no frame is left; the next event announces them */
        }
        else if (done == NULL) {
            outcome = FAILED;
        }
        Py_XDECREF(done);
    }
    Py_DECREF(plan);
    return outcome;
}

/* Count an event whose type cannot be opened for want of a frame; the agent opens it later. */
static void
count_unopened(Emit *self, PyObject *agent, PyObject *event)
{
    PyObject *counts = PyObject_GetAttr(agent, self->uncounted_name);
    if (counts != NULL && PyDict_CheckExact(counts)) {
        PyObject *before = PyDict_GetItemWithError(counts, event);
        PyObject *now = PyLong_FromLongLong((before == NULL ? 0 : PyLong_AsLongLong(before)) + 1);
        if (now != NULL) {
            (void)PyDict_SetItem(counts, event, now);
            Py_DECREF(now);
        }
    }
    Py_XDECREF(counts);
}

/* Where the interpreter has no frame left for a function, the event is counted, and nothing is raised. */
static PyObject *
count_without_frame(Emit *self, PyObject *const *args, size_t nargsf)
{
    if (!PyErr_ExceptionMatches(PyExc_RecursionError) || PyVectorcall_NARGS(nargsf) != 2 || !self->shortcut ||
        !PyUnicode_CheckExact(args[1])) {
        return NULL;
    }
    PyErr_Clear();
    SourceState *source = find_source(self, args[0], args[1]);
    if (source != NULL) {
        source->number++;
        Py_DECREF(source);
    }
    else {
        count_unopened(self, args[0], args[1]);
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyObject *
emit_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Emit *self = (Emit *)callable;
    if (PyVectorcall_NARGS(nargsf) == 2 && self->shortcut) {
        SourceState *source = NULL;
        if (args[0] == self->agent && args[1] == self->event) { /* as most often: the event that came last */
            source = (SourceState *)Py_NewRef(self->source);
        }
        else if (PyUnicode_CheckExact(args[1])) {
            source = find_source(self, args[0], args[1]);
            if (source == NULL && PyErr_Occurred()) {
                return NULL;
            }
        }
        if (source != NULL) {
            Outcome outcome = raise_event(self, source, args, kwnames);
            Py_DECREF(source);
            if (outcome == DONE) {
                Py_RETURN_NONE;
            }
            if (outcome == FAILED) {
                return NULL;
            }
        }
    }
    PyObject *done = PyObject_Vectorcall(self->function, args, nargsf, kwnames);
    return done != NULL ? done : count_without_frame(self, args, nargsf);
}

static PyObject *
emit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Emit", names, &PyFunction_Type, &function)) {
        return NULL;
    }
    PyObject *module = PyType_GetModule(type);
    Emit *self = module == NULL ? NULL : (Emit *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->vectorcall = emit_vectorcall;
    self->function = Py_NewRef(function);
    self->module = Py_NewRef(module);
    self->state = PyModule_GetState(module);
    self->shortcut = 1;
    self->types_name = PyUnicode_InternFromString("_types");
    self->kept_name = PyUnicode_InternFromString("_kept");
    self->uncounted_name = PyUnicode_InternFromString("_uncounted");
    self->forget_name = PyUnicode_InternFromString("forget");
    if (self->types_name == NULL || self->kept_name == NULL || self->uncounted_name == NULL ||
        self->forget_name == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

/* There is no tp_clear: a call must find the function as long as there is an Emit, and each cycle through it has a dict
   or a type that ends it. */
static int
emit_traverse(PyObject *op, visitproc visit, void *arg)
{
    Emit *self = (Emit *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->function);
    Py_VISIT(self->module);
    Py_VISIT(self->alive);
    Py_VISIT(self->types);
    Py_VISIT(self->source);
    return 0;
}

static void
emit_dealloc(PyObject *op)
{
    Emit *self = (Emit *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_XDECREF(self->function);
    Py_XDECREF(self->module);
    Py_XDECREF(self->alive);
    Py_XDECREF(self->types);
    Py_XDECREF(self->event);
    Py_XDECREF(self->source);
    Py_XDECREF(self->types_name);
    Py_XDECREF(self->kept_name);
    Py_XDECREF(self->uncounted_name);
    Py_XDECREF(self->forget_name);
    type->tp_free(op);
    Py_DECREF(type);
}

/* As of a function: bound to the agent that it is looked up in. */
static PyObject *
emit_get(PyObject *self, PyObject *object, PyObject *type)
{
    (void)type;
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

/* What belongs to the type itself; all other attributes, `__class__` as well, are the function's. */
static int
is_own(PyObject *name)
{
    static const char *const own[] = {"__get__", "__call__", "__reduce__", "__reduce_ex__", "__eq__", "__ne__", "__hash__"};
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (PyUnicode_CompareWithASCIIString(name, own[i]) == 0) {
            return 1;
        }
    }
    return 0;
}

static PyObject *
emit_getattro(PyObject *op, PyObject *name)
{
    Emit *self = (Emit *)op;
    if (!PyUnicode_Check(name) || is_own(name)) {
        return PyObject_GenericGetAttr(op, name);
    }
    return PyObject_GetAttr(self->function, name);
}

static int
emit_setattro(PyObject *op, PyObject *name, PyObject *value)
{
    Emit *self = (Emit *)op;
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__code__") == 0) {
        self->shortcut = 0;
    }
    return PyObject_SetAttr(self->function, name, value);
}

static PyObject *
emit_repr(PyObject *op)
{
    return PyObject_Repr(((Emit *)op)->function);
}

/* Pickled by its name, as a function. */
static PyObject *
emit_reduce(PyObject *op, PyObject *unused)
{
    (void)unused;
    return PyObject_GetAttrString(((Emit *)op)->function, "__qualname__");
}

/* Where pydoc looks for it: past `emit_getattro`. */
static PyObject *
emit_doc(PyObject *op, void *unused)
{
    (void)unused;
    return PyObject_GetAttrString(((Emit *)op)->function, "__doc__");
}

static PyGetSetDef emit_getset[] = {
    {"__doc__", emit_doc, NULL, NULL, NULL},
    {NULL},
};

static PyMethodDef emit_methods[] = {
    {"__reduce__", emit_reduce, METH_NOARGS, NULL},
    {"forget", emit_forget, METH_O, NULL},
    {NULL},
};

static PyMemberDef emit_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Emit, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Emit, weakrefs), READONLY, NULL},
    {NULL},
};

static PyType_Slot emit_slots[] = {
    {Py_tp_new, emit_new},
    {Py_tp_dealloc, emit_dealloc},
    {Py_tp_traverse, emit_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_descr_get, emit_get},
    {Py_tp_getattro, emit_getattro},
    {Py_tp_setattro, emit_setattro},
    {Py_tp_repr, emit_repr},
    {Py_tp_getset, emit_getset},
    {Py_tp_methods, emit_methods},
    {Py_tp_members, emit_members},
    {0, NULL},
};

/* Immutable, so that the interpreter's specialised method calls take it. */
static PyType_Spec emit_spec = {
    .name = "looptap._tap.Emit",
    .basicsize = sizeof(Emit),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = emit_slots,
};

