/*
 * The same as hot_path.py, which is the reference, in C.
 *
 * An event of the usual form is written here: the table has the default options, no
 * aggregate is parked, and topic and headers are cached. For every other row the
 * route's Python function writes the event. Partitions are chosen here, by the hash of
 * Kafka's Java client.
 *
 * Every read of a frame is checked against its length first. test_c_module.py runs this
 * file with the sanitizers of addresses and of undefined behavior, too.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum {
    PAYLOAD_AT = 25,
    BODY_AT = PAYLOAD_AT + 1,
    BEGIN_BYTES = BODY_AT + 20,
    COMMIT_BYTES = BODY_AT + 25,
    TAG_AT = BODY_AT + 4,
    COUNT_AT = TAG_AT + 1,
    VALUES_AT = COUNT_AT + 2,
};

/* Where a Transaction has its fields, and how many it has. */
enum { T_XID, T_COMMIT_LSN, T_LOG_LSN, T_COMMITTED_US, T_PLACE, T_ORIGIN, T_ORIGIN_LSN, T_COUNT };

/* Where a Record has its fields, and how many it has. */
enum { R_TOPIC, R_KEY, R_VALUE, R_HEADERS, R_POSITION, R_TIMESTAMP_MS, R_SIZE, R_PARTITION, R_COUNT };

/* The parts of an event, in the order of EVENT_PARTS. */
enum { P_ID, P_AGGREGATE_TYPE, P_KEY, P_TYPE, P_PAYLOAD, P_HEADERS, P_TRACE, P_AT, P_COUNT };

enum { PLACE_BYTES = 17, ORDINAL_DIGITS = 10, POSITION_BYTES = PLACE_BYTES + ORDINAL_DIGITS };

/* "YYYY-MM-DD HH:MM:SS", the same with microseconds, and the zone after it. */
enum { SECONDS_BYTES = 19, MICROSECONDS_BYTES = 26, ZONE_BYTES = 3 };

static const int64_t EPOCH_US = 946684800000000;
/* One below the greatest ordinal that has ten digits. */
static const int64_t ORDINALS = 9999999999;
/* The constants of murmur2, as Java's client has them. */
static const uint32_t SEED = 0x9747b28c, MULTIPLIER = 0x5bd1e995;

/* What the module takes from Python when it is imported. */
static struct {
    PyTypeObject *transaction, *record;
    PyObject *unchanged, *any_partition, *unroutable, *malformed;
    PyObject *event_id, *event_type, *position, *occurred_at, *traceparent;
    PyObject *partition_batch, *acknowledge, *no_position;
    Py_ssize_t bytes_per_record;
} py;

/* Import a module's attribute; NULL with an exception. */
static PyObject *
attribute(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *found = imported == NULL ? NULL : PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return found;
}

/* Import a class of named tuples, without a dictionary for each. */
static PyTypeObject *
tuple_type(const char *module, const char *name)
{
    PyObject *found = attribute(module, name);
    if (found == NULL)
        return NULL;
    PyTypeObject *type = (PyTypeObject *)found;
    if (!PyType_Check(found) || !PyType_IsSubtype(type, &PyTuple_Type)
        || type->tp_basicsize != PyTuple_Type.tp_basicsize || type->tp_dictoffset != 0) {
        PyErr_Format(PyExc_TypeError, "%s.%s is not a named tuple", module, name);
        Py_CLEAR(found);
    }
    return (PyTypeObject *)found;
}

/* Return a named tuple without values; its own constructor costs more than creating the tuple. */
static PyObject *
new_tuple(PyTypeObject *type, Py_ssize_t count)
{
    return type->tp_alloc(type, count);
}

/* Put a new reference into a tuple; return whether there is one. */
static int
put(PyObject *tuple, Py_ssize_t at, PyObject *value)
{
    PyTuple_SET_ITEM(tuple, at, value);
    return value != NULL;
}

static uint16_t
read_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t
read_u32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t
read_u64(const uint8_t *at)
{
    return (uint64_t)read_u32(at) << 32 | read_u32(at + 4);
}

static int64_t
read_i64(const uint8_t *at)
{
    uint64_t bits = read_u64(at);
    int64_t number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static int
are_arguments(const char *name, Py_ssize_t given, Py_ssize_t wanted, PyObject *frame)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
        return 0;
    }
    if (!PyBytes_CheckExact(frame)) {
        PyErr_Format(PyExc_TypeError, "%s: a frame is bytes", name);
        return 0;
    }
    return 1;
}

static PyObject *
make_place(uint64_t log_lsn)
{
    PyObject *place = PyBytes_FromStringAndSize(NULL, PLACE_BYTES);
    if (place == NULL)
        return NULL;
    char *text = PyBytes_AS_STRING(place);
    for (int at = PLACE_BYTES - 2; at >= 0; at--, log_lsn >>= 4)
        text[at] = "0123456789abcdef"[log_lsn & 15];
    text[PLACE_BYTES - 1] = '.';
    return place;
}

PyDoc_STRVAR(parse_begin_doc,
"parse_begin(frame, offset)\n--\n\n"
"Return the transaction that a frame begins; None for an unexpected frame.");

static PyObject *
parse_begin(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!are_arguments("parse_begin", nargs, 2, nargs ? args[0] : Py_None))
        return NULL;
    if (PyBytes_GET_SIZE(args[0]) != BEGIN_BYTES)
        Py_RETURN_NONE;
    const uint8_t *body = (const uint8_t *)PyBytes_AS_STRING(args[0]) + BODY_AT;
    int overflow = 0;
    long long offset = PyLong_AsLongLongAndOverflow(args[1], &overflow);
    if (offset == -1 && PyErr_Occurred())
        return NULL;
    uint64_t lsn = read_u64(body), log_lsn = 0;
    int64_t committed_us = 0;
    if (overflow || offset < 0 || __builtin_add_overflow(lsn, (uint64_t)offset, &log_lsn)
        || __builtin_add_overflow(read_i64(body + 8), EPOCH_US, &committed_us))
        Py_RETURN_NONE;
    PyObject *made = new_tuple(py.transaction, T_COUNT);
    if (made == NULL)
        return NULL;
    if (!put(made, T_XID, PyLong_FromUnsignedLong(read_u32(body + 16)))
        || !put(made, T_COMMIT_LSN, PyLong_FromUnsignedLongLong(lsn))
        || !put(made, T_LOG_LSN, PyLong_FromUnsignedLongLong(log_lsn))
        || !put(made, T_COMMITTED_US, PyLong_FromLongLong(committed_us))
        || !put(made, T_PLACE, make_place(log_lsn))) {
        Py_DECREF(made);
        return NULL;
    }
    put(made, T_ORIGIN, Py_NewRef(Py_None));
    put(made, T_ORIGIN_LSN, Py_NewRef(Py_None));
    return made;
}

PyDoc_STRVAR(parse_commit_doc,
"parse_commit(frame, transaction)\n--\n\n"
"Return the end LSN if the frame commits the transaction; otherwise None.");

static PyObject *
parse_commit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (!are_arguments("parse_commit", nargs, 2, nargs ? args[0] : Py_None))
        return NULL;
    if (PyBytes_GET_SIZE(args[0]) != COMMIT_BYTES || !Py_IS_TYPE(args[1], py.transaction))
        Py_RETURN_NONE;
    const uint8_t *body = (const uint8_t *)PyBytes_AS_STRING(args[0]) + BODY_AT;
    unsigned long long lsn =
        PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(args[1], T_COMMIT_LSN));
    if (lsn == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (body[0] != 0 || read_u64(body + 1) != lsn)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(read_u64(body + 9));
}

/* A value of a row in its frame: its size is NULL_VALUE or UNCHANGED_VALUE without one. */
typedef struct {
    const char *text;
    Py_ssize_t size;
} Value;

enum { NULL_VALUE = -1, UNCHANGED_VALUE = -2 };

typedef struct {
    PyObject_HEAD
    Py_ssize_t width;
    PyObject *write;
    /* These four are set if the events can have the usual form. */
    PyObject *types, *own_headers, *spans;
    Py_ssize_t places[P_COUNT];
    /* The values of the row that is read. */
    Value *values;
} PlainEvents;

/* Read a row's values; return whether they fill the frame. */
static int
read_values(PlainEvents *self, const char *frame, Py_ssize_t size)
{
    Py_ssize_t at = VALUES_AT;
    for (Py_ssize_t column = 0; column < self->width; column++) {
        if (at >= size)
            return 0;
        Value *value = &self->values[column];
        char form = frame[at++];
        value->text = frame + at;
        if (form == 't') {
            if (size - at < 4)
                return 0;
            Py_ssize_t length = read_u32((const uint8_t *)frame + at);
            at += 4;
            if (length > size - at)
                return 0;
            value->text = frame + at;
            value->size = length;
            at += length;
        } else if (form == 'n')
            value->size = NULL_VALUE;
        else if (form == 'u')
            value->size = UNCHANGED_VALUE;
        else
            return 0;
    }
    return at == size;
}

static PyObject *
as_object(const Value *value)
{
    if (value->size >= 0)
        return PyBytes_FromStringAndSize(value->text, value->size);
    return Py_NewRef(value->size == NULL_VALUE ? Py_None : py.unchanged);
}

/* Let the route's function write the event; None if it refuses the row. */
static PyObject *
write_event(PlainEvents *self, PyObject *transaction, PyObject *ordinal)
{
    PyObject *row = PyTuple_New(self->width);
    if (row == NULL)
        return NULL;
    for (Py_ssize_t column = 0; column < self->width; column++)
        if (!put(row, column, as_object(&self->values[column]))) {
            Py_DECREF(row);
            return NULL;
        }
    PyObject *args[] = {transaction, ordinal, row};
    PyObject *record = PyObject_Vectorcall(self->write, args, 3, NULL);
    Py_DECREF(row);
    if (record == NULL && (PyErr_ExceptionMatches(py.unroutable)
                           || PyErr_ExceptionMatches(py.malformed))) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return record;
}

static PyObject *
make_position(PyObject *transaction, int64_t ordinal)
{
    PyObject *place = PyTuple_GET_ITEM(transaction, T_PLACE);
    PyObject *position = PyBytes_FromStringAndSize(NULL, POSITION_BYTES);
    if (position == NULL)
        return NULL;
    char *text = PyBytes_AS_STRING(position);
    memcpy(text, PyBytes_AS_STRING(place), PLACE_BYTES);
    for (int at = POSITION_BYTES - 1; at >= PLACE_BYTES; at--, ordinal /= 10)
        text[at] = (char)('0' + ordinal % 10);
    return position;
}

/* Whether instant_of can rewrite a timestamptz; Python's instant rewrites the others. */
static int
is_usual_instant(const Value *value)
{
    Py_ssize_t size = value->size - ZONE_BYTES;
    const char *text = value->text;
    if (size < SECONDS_BYTES || size > MICROSECONDS_BYTES || text[10] != ' ')
        return 0;
    if (memcmp(text + size, "+00", ZONE_BYTES) != 0)
        return 0;
    if (size == MICROSECONDS_BYTES)
        return 1;
    int is_before_christ = memcmp(text + size - 3, " BC", 3) == 0;
    return text[4] == '-' && !is_before_christ && (size == SECONDS_BYTES || text[19] == '.');
}

static PyObject *
instant_of(const Value *value)
{
    Py_ssize_t size = value->size - ZONE_BYTES;
    PyObject *made = PyBytes_FromStringAndSize(NULL, MICROSECONDS_BYTES + 1);
    if (made == NULL)
        return NULL;
    char *text = PyBytes_AS_STRING(made);
    memcpy(text, value->text, (size_t)size);
    memset(text + size, '0', (size_t)(MICROSECONDS_BYTES - size));
    if (size == SECONDS_BYTES)
        text[SECONDS_BYTES] = '.';
    text[10] = 'T';
    text[MICROSECONDS_BYTES] = 'Z';
    return made;
}

/* Put a header with a new reference to its value into a list; return whether it is there. */
static int
put_header(PyObject *headers, Py_ssize_t at, PyObject *name, PyObject *value)
{
    PyObject *header = value == NULL ? NULL : PyTuple_New(2);
    if (header == NULL) {
        Py_XDECREF(value);
        return 0;
    }
    PyTuple_SET_ITEM(header, 0, Py_NewRef(name));
    PyTuple_SET_ITEM(header, 1, value);
    PyList_SET_ITEM(headers, at, header);
    return 1;
}

/* The cached facts of an event's type and of its own headers, all borrowed. */
typedef struct {
    PyObject *topic, *type_header, *more, *own_trace;
    Py_ssize_t size;
} Cached;

/* Find a cached tuple by a value's bytes; NULL without an exception if there is none. */
static PyObject *
find(PyObject *cache, const Value *value)
{
    PyObject *key = PyBytes_FromStringAndSize(value->text, value->size);
    if (key == NULL)
        return NULL;
    PyObject *found = PyDict_GetItemWithError(cache, key);
    Py_DECREF(key);
    return found;
}

/* Find the cached facts: 1 if they are all cached, 0 if not, -1 with an exception. */
static int
find_cached(PlainEvents *self, const Value *parts[], Cached *cached)
{
    *cached = (Cached){.own_trace = Py_None};
    PyObject *type = NULL, *own = NULL;
    if (parts[P_AGGREGATE_TYPE]->size >= 0)
        type = find(self->types, parts[P_AGGREGATE_TYPE]);
    if (type == NULL)
        return PyErr_Occurred() ? -1 : 0;
    cached->topic = PyTuple_GET_ITEM(type, 0);
    cached->type_header = PyTuple_GET_ITEM(type, 1);
    cached->size = PyLong_AsSsize_t(PyTuple_GET_ITEM(type, 2));
    if (parts[P_HEADERS]->size >= 0) {
        own = find(self->own_headers, parts[P_HEADERS]);
        /* Python's function counts a header that is dropped. */
        if (own == NULL || PyTuple_GET_ITEM(own, 3) == Py_True)
            return PyErr_Occurred() ? -1 : 0;
        cached->more = PyTuple_GET_ITEM(own, 0);
        cached->size += PyLong_AsSsize_t(PyTuple_GET_ITEM(own, 1));
        cached->own_trace = PyTuple_GET_ITEM(own, 2);
    }
    return PyErr_Occurred() ? -1 : 1;
}

static Py_ssize_t
length_of(const Value *value)
{
    return value->size >= 0 ? value->size : 0;
}

/* Return the trace context of an event, or None. */
static PyObject *
make_trace(const Value *parts[], const Cached *cached)
{
    /* An empty one yields to the one among the row's own headers. */
    if (cached->more != NULL && length_of(parts[P_TRACE]) == 0)
        return Py_NewRef(cached->own_trace);
    return as_object(parts[P_TRACE]);
}

/* Return the headers of an event; takes the reference to the trace context. */
static PyObject *
make_headers(const Value *parts[], const Cached *cached, PyObject *position, PyObject *trace)
{
    Py_ssize_t own = cached->more == NULL ? 0 : PyTuple_GET_SIZE(cached->more);
    int has_type = parts[P_TYPE]->size >= 0, has_time = parts[P_AT]->size >= 0;
    PyObject *headers = PyList_New(3 + has_type + has_time + (trace != Py_None) + own);
    Py_ssize_t at = 0;
    if (headers == NULL || !put_header(headers, at++, py.event_id, as_object(parts[P_ID])))
        goto failed;
    if (has_type && !put_header(headers, at++, py.event_type, as_object(parts[P_TYPE])))
        goto failed;
    PyList_SET_ITEM(headers, at++, Py_NewRef(cached->type_header));
    if (!put_header(headers, at++, py.position, Py_NewRef(position)))
        goto failed;
    if (has_time && !put_header(headers, at++, py.occurred_at, instant_of(parts[P_AT])))
        goto failed;
    if (trace == Py_None)
        Py_DECREF(trace);
    else if (!put_header(headers, at++, py.traceparent, trace)) {
        Py_DECREF(headers);
        return NULL;
    }
    for (Py_ssize_t more = 0; more < own; more++)
        PyList_SET_ITEM(headers, at++, Py_NewRef(PyTuple_GET_ITEM(cached->more, more)));
    return headers;
failed:
    Py_DECREF(trace);
    Py_XDECREF(headers);
    return NULL;
}

static PyObject *
make_record(const Value *parts[], const Cached *cached, PyObject *transaction, int64_t ordinal)
{
    long long committed_us = PyLong_AsLongLong(PyTuple_GET_ITEM(transaction, T_COMMITTED_US));
    if (committed_us == -1 && PyErr_Occurred())
        return NULL;
    /* Rounded down, as Python does. */
    long long timestamp_ms = committed_us / 1000 - (committed_us % 1000 < 0);
    Py_ssize_t size = cached->size + length_of(parts[P_PAYLOAD]) + length_of(parts[P_KEY])
        + length_of(parts[P_ID]) + length_of(parts[P_TYPE]);
    PyObject *position = make_position(transaction, ordinal);
    if (position == NULL)
        return NULL;
    PyObject *trace = make_trace(parts, cached), *headers = NULL;
    if (trace != NULL) {
        size += trace == Py_None ? 0 : PyBytes_GET_SIZE(trace);
        headers = make_headers(parts, cached, position, trace);
    }
    PyObject *record = headers == NULL ? NULL : new_tuple(py.record, R_COUNT);
    if (record == NULL) {
        Py_XDECREF(headers);
        Py_DECREF(position);
        return NULL;
    }
    put(record, R_TOPIC, Py_NewRef(cached->topic));
    put(record, R_HEADERS, headers);
    put(record, R_POSITION, position);
    put(record, R_PARTITION, Py_NewRef(py.any_partition));
    if (!put(record, R_KEY, as_object(parts[P_KEY])) || !put(record, R_VALUE, as_object(parts[P_PAYLOAD]))
        || !put(record, R_TIMESTAMP_MS, PyLong_FromLongLong(timestamp_ms))
        || !put(record, R_SIZE, PyLong_FromSsize_t(size)))
        Py_CLEAR(record);
    return record;
}

/* Point at the parts of an event; return whether it can have the usual form. */
static int
find_parts(PlainEvents *self, const Value *parts[])
{
    static const Value missing = {"", NULL_VALUE};
    for (Py_ssize_t part = 0; part < P_COUNT; part++) {
        Py_ssize_t place = self->places[part];
        parts[part] = place < 0 ? &missing : &self->values[place];
        if (parts[part]->size == UNCHANGED_VALUE)
            return 0;
    }
    return parts[P_AT]->size < 0 || is_usual_instant(parts[P_AT]);
}

PyDoc_STRVAR(record_doc,
"record(frame, transaction, ordinal)\n--\n\n"
"Return the event of an inserted row; None if the general path must handle it.");

static PyObject *
PlainEvents_record(PlainEvents *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (!are_arguments("record", nargs, 3, nargs ? args[0] : Py_None))
        return NULL;
    PyObject *transaction = args[1], *ordinal = args[2];
    if (!Py_IS_TYPE(transaction, py.transaction)) {
        PyErr_SetString(PyExc_TypeError, "record: a Transaction is needed");
        return NULL;
    }
    const char *frame = PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    if (size < VALUES_AT || frame[TAG_AT] != 'N'
        || read_u16((const uint8_t *)frame + COUNT_AT) != self->width
        || !read_values(self, frame, size))
        Py_RETURN_NONE;
    const Value *parts[P_COUNT];
    PyObject *place = PyTuple_GET_ITEM(transaction, T_PLACE);
    if (self->types == NULL || PyDict_GET_SIZE(self->spans) != 0
        || PyBytes_GET_SIZE(place) != PLACE_BYTES || !find_parts(self, parts))
        return write_event(self, transaction, ordinal);
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(ordinal, &overflow);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (overflow || number < 0 || number > ORDINALS)
        return write_event(self, transaction, ordinal);
    Cached cached;
    int is_cached = find_cached(self, parts, &cached);
    if (is_cached < 0)
        return NULL;
    if (!is_cached)
        return write_event(self, transaction, ordinal);
    return make_record(parts, &cached, transaction, number);
}

/* Take an EventLayout: the places of the parts, the caches and the parked spans. */
static int
take_layout(PlainEvents *self, PyObject *layout)
{
    PyObject *places;
    if (!PyArg_ParseTuple(layout, "O!O!O!O!:EventLayout", &PyTuple_Type, &places, &PyDict_Type,
                          &self->types, &PyDict_Type, &self->own_headers, &PyDict_Type,
                          &self->spans)) {
        self->types = self->own_headers = self->spans = NULL;
        return -1;
    }
    Py_INCREF(self->types);
    Py_INCREF(self->own_headers);
    Py_INCREF(self->spans);
    if (PyTuple_GET_SIZE(places) != P_COUNT) {
        PyErr_SetString(PyExc_ValueError, "an event has eight parts");
        return -1;
    }
    for (Py_ssize_t part = 0; part < P_COUNT; part++) {
        Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, part));
        if (place == -1 && PyErr_Occurred())
            return -1;
        if (place < -1 || place >= self->width) {
            PyErr_SetString(PyExc_ValueError, "a part lies outside the row");
            return -1;
        }
        self->places[part] = place;
    }
    return 0;
}

static int
PlainEvents_traverse(PlainEvents *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->write);
    Py_VISIT(self->types);
    Py_VISIT(self->own_headers);
    Py_VISIT(self->spans);
    return 0;
}

static int
PlainEvents_clear(PlainEvents *self)
{
    Py_CLEAR(self->write);
    Py_CLEAR(self->types);
    Py_CLEAR(self->own_headers);
    Py_CLEAR(self->spans);
    return 0;
}

static void
PlainEvents_dealloc(PlainEvents *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PlainEvents_clear(self);
    PyMem_Free(self->values);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
PlainEvents_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"width", "write", "layout", NULL};
    Py_ssize_t width;
    PyObject *write, *layout;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nOO:PlainEvents", names, &width, &write,
                                     &layout))
        return NULL;
    PlainEvents *self = (PlainEvents *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->width = width;
    self->write = Py_NewRef(write);
    self->values = width < 0 ? NULL : PyMem_New(Value, (size_t)width + 1);
    if (self->values == NULL) {
        PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    if (layout != Py_None && take_layout(self, layout) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyMethodDef PlainEvents_methods[] = {
    {"record", (PyCFunction)(void (*)(void))PlainEvents_record, METH_FASTCALL, record_doc},
    {0},
};

static PyType_Slot PlainEvents_slots[] = {
    {Py_tp_doc, "Makes the events of one schema of the outbox from frames."},
    {Py_tp_new, PlainEvents_new},
    {Py_tp_dealloc, PlainEvents_dealloc},
    {Py_tp_traverse, PlainEvents_traverse},
    {Py_tp_clear, PlainEvents_clear},
    {Py_tp_methods, PlainEvents_methods},
    {0},
};

static PyType_Spec PlainEvents_spec = {
    .name = "towpath.relay.publish.hot_path.PlainEvents",
    .basicsize = sizeof(PlainEvents),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = PlainEvents_slots,
};

/* The records of one partition; all but the list of deliveries are borrowed. */
typedef struct {
    PyObject *topic, *deliveries, *position;
    long partition;
    Py_ssize_t size_bytes, last;
} Batch;

/*
 * The batches that were found so far. ``slots`` is a hash table with open addressing: the
 * index of a batch plus one, or 0. It has at least twice as many slots as records.
 */
typedef struct {
    Batch *found;
    Py_ssize_t count;
    uint32_t *slots;
    size_t mask;
} Batches;

static uint32_t
murmur2(const unsigned char *data, Py_ssize_t size)
{
    uint32_t hash = SEED ^ (uint32_t)size;
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t word = (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16
            | (uint32_t)data[3] << 24;
        word *= MULTIPLIER;
        word ^= word >> 24;
        hash = hash * MULTIPLIER ^ word * MULTIPLIER;
    }
    if (size > 0) {
        uint32_t tail = 0;
        while (size-- > 0)
            tail = tail << 8 | data[size];
        hash = (hash ^ tail) * MULTIPLIER;
    }
    hash ^= hash >> 13;
    hash *= MULTIPLIER;
    return hash ^ hash >> 15;
}

/* Return the size of bytes or None; -1 with an exception for anything else. */
static Py_ssize_t
size_of(PyObject *value)
{
    if (value == Py_None)
        return 0;
    if (PyBytes_Check(value))
        return PyBytes_GET_SIZE(value);
    PyErr_SetString(PyExc_TypeError, "a key or value is neither bytes nor None");
    return -1;
}

/* Return a key's partition in a topic with at least one. */
static long
partition_of_key(const char *key, Py_ssize_t size, long count)
{
    return (long)(murmur2((const unsigned char *)key, size) & 0x7fffffff) % count;
}

/* Choose the partition of a record by its key; -1 with an exception. */
static long
choose_partition(PyObject *record, PyObject *counts)
{
    PyObject *key = PyTuple_GET_ITEM(record, R_KEY);
    Py_ssize_t size = size_of(key);
    PyObject *found = size < 0 ? NULL : PyObject_GetItem(counts, PyTuple_GET_ITEM(record, R_TOPIC));
    if (found == NULL)
        return -1;
    long count = PyLong_AsLong(found);
    Py_DECREF(found);
    if (count < 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a topic has no partition");
        return -1;
    }
    return partition_of_key(size == 0 ? "" : PyBytes_AS_STRING(key), size, count);
}

/* Return the partition of a record; -1 with an exception. */
static long
partition_of(PyObject *record, PyObject *counts)
{
    long partition = PyLong_AsLong(PyTuple_GET_ITEM(record, R_PARTITION));
    if (partition >= 0 || PyErr_Occurred())
        return partition;
    return choose_partition(record, counts);
}

/* Find the batch of a partition, or begin it; NULL with an exception. */
static Batch *
batch_of(Batches *batches, PyObject *topic, long partition)
{
    Py_hash_t hash = PyObject_Hash(topic);
    if (hash == -1)
        return NULL;
    size_t slot = ((size_t)hash ^ (size_t)partition * MULTIPLIER) & batches->mask;
    for (; batches->slots[slot] != 0; slot = (slot + 1) & batches->mask) {
        Batch *batch = &batches->found[batches->slots[slot] - 1];
        if (batch->partition != partition)
            continue;
        if (batch->topic == topic)
            return batch;
        int is_same = PyObject_RichCompareBool(batch->topic, topic, Py_EQ);
        if (is_same != 0)
            return is_same < 0 ? NULL : batch;
    }
    Batch *batch = &batches->found[batches->count];
    *batch = (Batch){.topic = topic, .partition = partition, .position = py.no_position,
                     .deliveries = PyList_New(0)};
    if (batch->deliveries == NULL)
        return NULL;
    batches->slots[slot] = (uint32_t)++batches->count;
    return batch;
}

/* Add a queued record to its batch; return it with its partition, without a callback. */
static PyObject *
add(Batches *batches, PyObject *entry, Py_ssize_t at, PyObject *counts)
{
    if (!PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 3
        || !Py_IS_TYPE(PyTuple_GET_ITEM(entry, 0), py.record)
        || !PyBytes_CheckExact(PyTuple_GET_ITEM(entry, 2))) {
        PyErr_SetString(PyExc_TypeError, "not a record, its delivery and its position");
        return NULL;
    }
    PyObject *record = PyTuple_GET_ITEM(entry, 0), *position = PyTuple_GET_ITEM(entry, 2);
    Py_ssize_t size = size_of(PyTuple_GET_ITEM(record, R_VALUE));
    long partition = size < 0 ? -1 : partition_of(record, counts);
    if (partition < 0)
        return NULL;
    Batch *batch = batch_of(batches, PyTuple_GET_ITEM(record, R_TOPIC), partition);
    if (batch == NULL || PyList_Append(batch->deliveries, PyTuple_GET_ITEM(entry, 1)) < 0)
        return NULL;
    batch->size_bytes += size + py.bytes_per_record;
    batch->last = at;
    if (PyBytes_GET_SIZE(position) > 0)
        batch->position = position;
    PyObject *outgoing = PyTuple_New(3);
    if (outgoing == NULL)
        return NULL;
    put(outgoing, 0, Py_NewRef(record));
    put(outgoing, 2, Py_NewRef(Py_None));
    if (!put(outgoing, 1, PyLong_FromLong(partition)))
        Py_CLEAR(outgoing);
    return outgoing;
}

/* Give a batch's last record its callback; return its topic and partition. */
static PyObject *
finish(const Batch *batch, PyObject *outgoing, PyObject *ledger)
{
    PyObject *partition = Py_BuildValue("(Ol)", batch->topic, batch->partition);
    if (partition == NULL)
        return NULL;
    PyObject *made = PyObject_CallFunction(py.partition_batch, "OOOnO", ledger, partition,
                                           batch->deliveries, batch->size_bytes, batch->position);
    PyObject *callback = made == NULL ? NULL : PyObject_GetAttr(made, py.acknowledge);
    Py_XDECREF(made);
    if (callback == NULL) {
        Py_DECREF(partition);
        return NULL;
    }
    PyObject *last = PyList_GET_ITEM(outgoing, batch->last);
    Py_DECREF(PyTuple_GET_ITEM(last, 2));
    PyTuple_SET_ITEM(last, 2, callback);
    return partition;
}

/* Add all queued records; return whether that succeeded. */
static int
add_all(Batches *batches, PyObject *queued, PyObject *outgoing, PyObject *counts)
{
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(outgoing); at++) {
        /* The list is checked again, as looking up a partition count may run Python. */
        PyObject *entry = at < PyList_GET_SIZE(queued) ? PyList_GET_ITEM(queued, at) : Py_None;
        PyObject *added = add(batches, entry, at, counts);
        if (added == NULL)
            return 0;
        PyList_SET_ITEM(outgoing, at, added);
    }
    return 1;
}

static PyObject *
batch_with(Batches *batches, PyObject *queued, PyObject *ledger, PyObject *counts)
{
    PyObject *outgoing = PyList_New(PyList_GET_SIZE(queued)), *partitions = NULL;
    if (outgoing != NULL && add_all(batches, queued, outgoing, counts))
        partitions = PyList_New(batches->count);
    for (Py_ssize_t at = 0; partitions != NULL && at < batches->count; at++) {
        PyObject *partition = finish(&batches->found[at], outgoing, ledger);
        if (partition == NULL)
            Py_CLEAR(partitions);
        else
            PyList_SET_ITEM(partitions, at, partition);
    }
    for (Py_ssize_t at = 0; at < batches->count; at++)
        Py_DECREF(batches->found[at].deliveries);
    if (partitions == NULL) {
        Py_XDECREF(outgoing);
        return NULL;
    }
    return Py_BuildValue("(NN)", outgoing, partitions);
}

PyDoc_STRVAR(batched_doc,
"batched(queued, ledger, counts, partitioner)\n--\n\n"
"Return queued records with their partitions and callbacks, and the partitions.");

static PyObject *
batched(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "batched takes a list and three other arguments");
        return NULL;
    }
    size_t records = (size_t)PyList_GET_SIZE(args[0]), slots = 2;
    while (slots < 2 * records)
        slots *= 2;
    Batches batches = {
        .found = PyMem_New(Batch, records + 1),
        .slots = PyMem_Calloc(slots, sizeof(uint32_t)),
        .mask = slots - 1,
    };
    PyObject *made = batches.found == NULL || batches.slots == NULL
        ? PyErr_NoMemory()
        : batch_with(&batches, args[0], args[1], args[2]);
    PyMem_Free(batches.found);
    PyMem_Free(batches.slots);
    return made;
}

PyDoc_STRVAR(partitions_of_doc,
"partitions_of(keys, count, partitioner)\n--\n\n"
"Return each key's partition in a topic with this many partitions.");

static PyObject *
partitions_of(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "partitions_of takes a list and two other arguments");
        return NULL;
    }
    long count = PyLong_AsLong(args[1]);
    if (count < 1) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a topic has at least one partition");
        return NULL;
    }
    PyObject *partitions = PyList_New(PyList_GET_SIZE(args[0]));
    for (Py_ssize_t at = 0; partitions != NULL && at < PyList_GET_SIZE(partitions); at++) {
        PyObject *key = PyList_GET_ITEM(args[0], at), *partition = NULL;
        if (PyBytes_CheckExact(key))
            partition = PyLong_FromLong(
                partition_of_key(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key), count));
        else
            PyErr_SetString(PyExc_TypeError, "a key is bytes");
        if (partition == NULL)
            Py_CLEAR(partitions);
        else
            PyList_SET_ITEM(partitions, at, partition);
    }
    return partitions;
}

static int
take_from_python(void)
{
    static const char *const errors = "towpath.relay.errors";
    static const char *const record = "towpath.relay.encode.record";
    static const char *const headers = "towpath.schemas.headers";
    static const char *const in_flight = "towpath.relay.publish.in_flight";
    PyObject *record_bytes = attribute(in_flight, "RECORD_BYTES");
    if (record_bytes == NULL)
        return 0;
    py.bytes_per_record = PyLong_AsSsize_t(record_bytes);
    Py_DECREF(record_bytes);
    return !PyErr_Occurred()
        && (py.transaction = tuple_type("towpath.relay.wal.transactions", "Transaction")) != NULL
        && (py.record = tuple_type(record, "Record")) != NULL
        && (py.any_partition = attribute(record, "ANY_PARTITION")) != NULL
        && (py.unchanged = attribute("towpath.relay.wal.messages", "UNCHANGED")) != NULL
        && (py.unroutable = attribute(errors, "UnroutableError")) != NULL
        && (py.malformed = attribute(errors, "MalformedMessageError")) != NULL
        && (py.event_id = attribute(headers, "EVENT_ID")) != NULL
        && (py.event_type = attribute(headers, "EVENT_TYPE")) != NULL
        && (py.position = attribute(headers, "POSITION")) != NULL
        && (py.occurred_at = attribute(headers, "OCCURRED_AT")) != NULL
        && (py.traceparent = attribute(headers, "TRACEPARENT")) != NULL
        && (py.partition_batch = attribute(in_flight, "PartitionBatch")) != NULL
        && (py.no_position = PyBytes_FromStringAndSize("", 0)) != NULL
        && (py.acknowledge = PyUnicode_InternFromString("acknowledge")) != NULL;
}

static PyMethodDef functions[] = {
    {"parse_begin", (PyCFunction)(void (*)(void))parse_begin, METH_FASTCALL, parse_begin_doc},
    {"parse_commit", (PyCFunction)(void (*)(void))parse_commit, METH_FASTCALL, parse_commit_doc},
    {"batched", (PyCFunction)(void (*)(void))batched, METH_FASTCALL, batched_doc},
    {"partitions_of", (PyCFunction)(void (*)(void))partitions_of, METH_FASTCALL,
     partitions_of_doc},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "towpath.relay.publish.hot_path",
    .m_doc = "The steps of the hot path that have a form in C.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit_hot_path(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    PyObject *type = PyType_FromModuleAndSpec(module, &PlainEvents_spec, NULL);
    if (type == NULL || PyModule_AddObjectRef(module, "PlainEvents", type) < 0
        || !take_from_python())
        Py_CLEAR(module);
    Py_XDECREF(type);
    return module;
}
