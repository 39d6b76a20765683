/* Rows: the events that wait for evaluation, whose columns have types.

   To Python code it looks like the flat list that it replaces: `rows += row` appends a row, `len` counts elements,
   `rows[m:n]` copies some and `del rows[:n]` removes the first ones. `columns()` hands over what it holds. A column holds
   numbers as long as all have one of the types int (of 64 bits), float and bool, else objects. An object in place of a
   row's third element (the end of a group, an event that was cut short) is its mark: such a row has no values.

   Each call happens as a whole, as far as other threads and signals go: none runs Python code, but for what the end of
   an object may run, and objects are let go last. */

#include "tap.h"

#define FIRST_CAPACITY 64
#define MAX_IDLE_CAPACITY 4096 /* rows whose memory is kept while there are none */

static Py_ssize_t
columns_of(const Rows *self)
{
    return self->width - HEADER_COUNT;
}

static Cell *
row_at(const Rows *self, Py_ssize_t row)
{
    return self->cells + row * self->width;
}

static Cell *
value_at(const Rows *self, Py_ssize_t row, Py_ssize_t column)
{
    return row_at(self, row) + HEADER_COUNT + column;
}

static PyObject *
boxed(Kind kind, Cell cell)
{
    switch (kind) {
    case INTEGER:
        return PyLong_FromLongLong(cell.integer);
    case REAL:
        return PyFloat_FromDouble(cell.real);
    case BOOLEAN:
        return PyBool_FromLong(cell.integer != 0);
    case OBJECT:
        return Py_NewRef(cell.object);
    default:
        Py_RETURN_NONE;
    }
}

static Value
value_of(PyObject *object)
{
    Value value = {OBJECT, {.object = object}};
    if (PyFloat_CheckExact(object)) {
        value.kind = REAL;
        value.cell.real = PyFloat_AS_DOUBLE(object);
    }
    else if (PyBool_Check(object)) {
        value.kind = BOOLEAN;
        value.cell.integer = object == Py_True;
    }
    else if (PyLong_CheckExact(object)) {
        int overflow;
        long long integer = PyLong_AsLongLongAndOverflow(object, &overflow);
        if (!overflow) {
            value.kind = INTEGER;
            value.cell.integer = integer;
        }
    }
    return value;
}

/* ------------------------------------------------------------ memory */

static void
free_rows(Rows *self)
{
    PyMem_Free(self->cells);
    PyMem_Free(self->marks);
    self->cells = NULL;
    self->marks = NULL;
    self->capacity = 0;
}

/* Make room for this many rows; -1 with MemoryError, and all rows as they were. */
static int
reserve(Rows *self, Py_ssize_t rows)
{
    if (rows <= self->capacity) {
        return 0;
    }
    Py_ssize_t capacity = self->capacity ? 2 * self->capacity : FIRST_CAPACITY;
    capacity = capacity < rows ? rows : capacity;
    if (capacity > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(Cell) / self->width) {
        PyErr_NoMemory();
        return -1;
    }
    Cell *cells = PyMem_Realloc(self->cells, capacity * self->width * sizeof(Cell));
    if (cells == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->cells = cells;
    if (self->marks != NULL) {
        PyObject **marks = PyMem_Realloc(self->marks, capacity * sizeof(PyObject *));
        if (marks == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->marks = marks;
        memset(marks + self->capacity, 0, (capacity - self->capacity) * sizeof(PyObject *));
    }
    self->capacity = capacity;
    return 0;
}

/* ------------------------------------------------------------ append */

/* Let a column hold objects; -1 with MemoryError, and the column as it was. */
static int
make_objects(Rows *self, Py_ssize_t column)
{
    Kind kind = self->kinds[column];
    PyObject **made = PyMem_Malloc((self->count ? self->count : 1) * sizeof(PyObject *));
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        int empty = self->marks != NULL && self->marks[i] != NULL;
        made[i] = boxed(empty ? NOTHING : kind, *value_at(self, i, column));
        if (made[i] == NULL) {
            while (i > 0) {
                Py_DECREF(made[--i]);
            }
            PyMem_Free(made);
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < self->count; i++) {
        value_at(self, i, column)->object = made[i];
    }
    self->kinds[column] = OBJECT;
    PyMem_Free(made);
    return 0;
}

/* Put a value behind the last row of a column; -1 with MemoryError. */
static int
put(Rows *self, Py_ssize_t column, Value value)
{
    Kind kind = self->kinds[column];
    if (kind == NOTHING && value.kind != OBJECT) {
        kind = self->kinds[column] = value.kind;
    }
    if (kind != value.kind && kind != OBJECT && make_objects(self, column) < 0) {
        return -1;
    }
    Cell *cell = value_at(self, self->count, column);
    if (self->kinds[column] != OBJECT) {
        *cell = value.cell;
        return 0;
    }
    PyObject *object = boxed(value.kind, value.cell);
    if (object == NULL) {
        return -1;
    }
    cell->object = object;
    return 0;
}

static int
rows_append(Rows *self, long long number, double now, long long began, PyObject *mark, const Value *values)
{
    if (reserve(self, self->count + 1) < 0) {
        return -1;
    }
    if (mark != NULL && self->marks == NULL) {
        self->marks = PyMem_Calloc(self->capacity, sizeof(PyObject *));
        if (self->marks == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (Py_ssize_t c = 0; c < columns_of(self); c++) {
        int failed = 0;
        if (mark == NULL) {
            failed = put(self, c, values[c]) < 0;
        }
        else if (self->kinds[c] == OBJECT) {
            value_at(self, self->count, c)->object = Py_NewRef(Py_None);
        }
        else {
            value_at(self, self->count, c)->integer = 0;
        }
        if (failed) {
            while (c > 0) {
                if (self->kinds[--c] == OBJECT) {
                    Py_DECREF(value_at(self, self->count, c)->object);
                }
            }
            return -1;
        }
    }
    Cell *row = row_at(self, self->count);
    row[0].integer = number;
    row[1].real = now;
    row[2].integer = began;
    if (self->marks != NULL) {
        self->marks[self->count] = Py_XNewRef(mark);
    }
    self->count++;
    return 0;
}

/* rows += row */
static PyObject *
rows_extend(PyObject *op, PyObject *row)
{
    Rows *self = (Rows *)op;
    if (!PyTuple_CheckExact(row) || PyTuple_GET_SIZE(row) != self->width) {
        return PyErr_Format(PyExc_TypeError, "a row is a tuple of %zd elements.", self->width);
    }
    long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(row, 0));
    double now = PyErr_Occurred() ? 0.0 : PyFloat_AsDouble(PyTuple_GET_ITEM(row, 1));
    if (PyErr_Occurred()) {
        return NULL;
    }
    PyObject *third = PyTuple_GET_ITEM(row, 2), *mark = NULL;
    long long began = 0;
    if (PyLong_CheckExact(third)) {
        began = PyLong_AsLongLong(third);
        if (began == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    else {
        mark = third;
    }
    Value few[MAX_NAMES], *values = few;
    if (columns_of(self) > MAX_NAMES) {
        values = PyMem_Malloc(columns_of(self) * sizeof(Value));
        if (values == NULL) {
            return PyErr_NoMemory();
        }
    }
    for (Py_ssize_t c = 0; c < columns_of(self); c++) {
        values[c] = value_of(PyTuple_GET_ITEM(row, HEADER_COUNT + c));
    }
    int failed = rows_append(self, number, now, began, mark, values);
    if (values != few) {
        PyMem_Free(values);
    }
    return failed ? NULL : Py_NewRef(op);
}

/* ------------------------------------------------------------ take away */

/* Remove the first rows; -1 with MemoryError, and all rows as they were. */
static int
remove_first(Rows *self, Py_ssize_t count)
{
    Py_ssize_t left = self->count - count, objects = 0, found = 0;
    for (Py_ssize_t c = 0; c < columns_of(self); c++) {
        objects += self->kinds[c] == OBJECT ? count : 0;
    }
    objects += self->marks != NULL ? count : 0;
    PyObject **removed = NULL;
    if (objects) {
        removed = PyMem_Malloc(objects * sizeof(PyObject *));
        if (removed == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    for (Py_ssize_t c = 0; c < columns_of(self); c++) {
        for (Py_ssize_t i = 0; self->kinds[c] == OBJECT && i < count; i++) {
            removed[found++] = value_at(self, i, c)->object;
        }
        self->kinds[c] = left ? self->kinds[c] : NOTHING;
    }
    if (left) {
        memmove(self->cells, row_at(self, count), left * self->width * sizeof(Cell));
    }
    if (self->marks != NULL) {
        for (Py_ssize_t i = 0; i < count; i++) {
            removed[found++] = self->marks[i];
        }
        memmove(self->marks, self->marks + count, left * sizeof(PyObject *));
        memset(self->marks + left, 0, count * sizeof(PyObject *));
        if (!left) {
            PyMem_Free(self->marks);
            self->marks = NULL;
        }
    }
    self->count = left;
    if (!left && self->capacity > MAX_IDLE_CAPACITY) {
        free_rows(self);
    }
    while (found > 0) {
        Py_XDECREF(removed[--found]);
    }
    PyMem_Free(removed);
    return 0;
}

static Rows *rows_of(PyTypeObject *type, Py_ssize_t width);

/* How many rows `[m:n]` means, and which is the first; -1 with an error. */
static Py_ssize_t
rows_of_slice(Rows *self, PyObject *key, Py_ssize_t *first)
{
    Py_ssize_t start, stop, step;
    if (!PySlice_Check(key)) {
        PyErr_SetString(PyExc_TypeError, "rows are taken as slices, as rows[:n].");
        return -1;
    }
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) { /* which may run code of the host's */
        return -1;
    }
    Py_ssize_t count = PySlice_AdjustIndices(self->count * self->width, &start, &stop, step);
    if (count && (start % self->width || step != 1 || count % self->width)) {
        PyErr_SetString(PyExc_ValueError, "rows are taken whole, as rows[:n] with n a multiple of their width.");
        return -1;
    }
    *first = start / self->width;
    return count / self->width;
}

/* rows[m:n] */
static PyObject *
rows_subscript(PyObject *op, PyObject *key)
{
    Rows *self = (Rows *)op;
    Rows *copy = rows_of(Py_TYPE(op), self->width);
    Py_ssize_t first = 0, count = copy == NULL ? -1 : rows_of_slice(self, key, &first);
    if (count < 0 || reserve(copy, count) < 0) {
        Py_XDECREF(copy);
        return NULL;
    }
    if (self->marks != NULL && count) {
        copy->marks = PyMem_Calloc(copy->capacity, sizeof(PyObject *));
        if (copy->marks == NULL) {
            Py_DECREF(copy);
            return PyErr_NoMemory();
        }
    }
    if (count) {
        memcpy(copy->cells, row_at(self, first), count * self->width * sizeof(Cell));
    }
    for (Py_ssize_t c = 0; count && c < columns_of(self); c++) {
        copy->kinds[c] = self->kinds[c];
        for (Py_ssize_t i = 0; copy->kinds[c] == OBJECT && i < count; i++) {
            Py_INCREF(value_at(copy, i, c)->object);
        }
    }
    for (Py_ssize_t i = 0; copy->marks != NULL && i < count; i++) {
        copy->marks[i] = Py_XNewRef(self->marks[first + i]);
    }
    copy->count = count;
    return (PyObject *)copy;
}

/* del rows[:n] */
static int
rows_ass_subscript(PyObject *op, PyObject *key, PyObject *value)
{
    if (value != NULL) {
        PyErr_SetString(PyExc_TypeError, "rows are appended and removed, never changed.");
        return -1;
    }
    Py_ssize_t first = 0, count = rows_of_slice((Rows *)op, key, &first);
    if (count > 0 && first != 0) {
        PyErr_SetString(PyExc_ValueError, "rows are removed from the front, as del rows[:n].");
        return -1;
    }
    return count < 0 ? -1 : remove_first((Rows *)op, count);
}

static PyObject *
rows_clear(PyObject *op, PyObject *unused)
{
    (void)unused;
    if (remove_first((Rows *)op, ((Rows *)op)->count) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static Py_ssize_t
rows_length(PyObject *op)
{
    return ((Rows *)op)->count * ((Rows *)op)->width;
}

/* ------------------------------------------------------------ hand over */

/* One element of all rows, as the bytes of 64-bit numbers. */
static PyObject *
bytes_of(const Rows *self, Py_ssize_t element)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, self->count * sizeof(Cell));
    char *at = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    for (Py_ssize_t i = 0; at != NULL && i < self->count; i++, at += sizeof(Cell)) {
        memcpy(at, row_at(self, i) + element, sizeof(Cell));
    }
    return bytes;
}

/* A column: (type code, bytes) of numbers, else a list. */
static PyObject *
column_of(const Rows *self, Py_ssize_t column)
{
    Kind kind = self->kinds[column];
    if (kind == INTEGER || kind == REAL) {
        return Py_BuildValue("CN", kind, bytes_of(self, HEADER_COUNT + column));
    }
    if (kind == BOOLEAN) {
        PyObject *bytes = PyBytes_FromStringAndSize(NULL, self->count);
        for (Py_ssize_t i = 0; bytes != NULL && i < self->count; i++) {
            PyBytes_AS_STRING(bytes)[i] = (char)value_at(self, i, column)->integer;
        }
        return Py_BuildValue("CN", kind, bytes);
    }
    PyObject *list = PyList_New(self->count);
    for (Py_ssize_t i = 0; list != NULL && i < self->count; i++) {
        PyObject *one = boxed(kind, *value_at(self, i, column)); /* of objects and nothing: no new one */
        PyList_SET_ITEM(list, i, one);
    }
    return list;
}

/* The third elements: bytes, or a list if there are marks among them. */
static PyObject *
third_of(const Rows *self)
{
    if (self->marks == NULL) {
        return bytes_of(self, 2);
    }
    PyObject *list = PyList_New(self->count);
    for (Py_ssize_t i = 0; list != NULL && i < self->count; i++) {
        PyObject *one = Py_XNewRef(self->marks[i]);
        if (one == NULL && (one = boxed(INTEGER, row_at(self, i)[2])) == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, one);
    }
    return list;
}

/* columns(): (numbers, times, third elements, values), as bytes of 64-bit numbers, or lists. */
static PyObject *
rows_columns(PyObject *op, PyObject *unused)
{
    (void)unused;
    /* Objects are made below, and the collector may run: nobody else has the copy, which does not change. */
    PyObject *all = PySlice_New(NULL, NULL, NULL);
    Rows *self = all == NULL ? NULL : (Rows *)rows_subscript(op, all);
    Py_XDECREF(all);
    if (self == NULL) {
        return NULL;
    }
    PyObject *values = PyTuple_New(columns_of(self));
    for (Py_ssize_t c = 0; values != NULL && c < columns_of(self); c++) {
        PyObject *column = column_of(self, c);
        if (column == NULL) {
            Py_CLEAR(values);
            break;
        }
        PyTuple_SET_ITEM(values, c, column);
    }
    PyObject *found = NULL;
    if (values != NULL) {
        found = Py_BuildValue("NNNN", bytes_of(self, 0), bytes_of(self, 1), third_of(self), values);
    }
    Py_DECREF(self);
    return found;
}

/* ------------------------------------------------------------ the type */

static Rows *
rows_of(PyTypeObject *type, Py_ssize_t width)
{
    Rows *self = (Rows *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->width = width;
    size_t columns = (size_t)columns_of(self);
    self->kinds = PyMem_Calloc(columns ? columns : 1, sizeof(Kind));
    if (self->kinds == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

static PyObject *
rows_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"width", NULL};
    Py_ssize_t width;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:Rows", names, &width)) {
        return NULL;
    }
    if (width < HEADER_COUNT || width > PY_SSIZE_T_MAX / (Py_ssize_t)sizeof(Cell) / 2) {
        return PyErr_Format(PyExc_ValueError, "Rows(%zd): a row has a number, a time, a group and values.", width);
    }
    return (PyObject *)rows_of(type, width);
}

static void
rows_dealloc(PyObject *op)
{
    Rows *self = (Rows *)op;
    PyTypeObject *type = Py_TYPE(op);
    for (Py_ssize_t c = 0; self->kinds != NULL && c < columns_of(self); c++) {
        for (Py_ssize_t i = 0; self->kinds[c] == OBJECT && i < self->count; i++) {
            Py_DECREF(value_at(self, i, c)->object);
        }
    }
    for (Py_ssize_t i = 0; self->marks != NULL && i < self->count; i++) {
        Py_XDECREF(self->marks[i]);
    }
    free_rows(self);
    PyMem_Free(self->kinds);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef rows_methods[] = {
    {"clear", rows_clear, METH_NOARGS, "Remove all rows."},
    {"columns", rows_columns, METH_NOARGS, "Return numbers, times, third elements and values, column by column."},
    {NULL},
};

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Events that wait for evaluation, in typed columns."},
    {Py_tp_new, rows_new},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_methods, rows_methods},
    {Py_sq_length, rows_length},
    {Py_sq_inplace_concat, rows_extend},
    {Py_mp_length, rows_length},
    {Py_mp_subscript, rows_subscript},
    {Py_mp_ass_subscript, rows_ass_subscript},
    {0, NULL},
};

static PyType_Spec rows_spec = {
    .name = "looptap._tap.Rows",
    .basicsize = sizeof(Rows),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = rows_slots,
};
