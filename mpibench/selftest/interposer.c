/* A network whose answer is known: between the program and its MPI library (LD_PRELOAD, over PMPI).

   Every all-reduce (blocking, non-blocking, persistent) does the real thing and completes no earlier
   than a modelled wire has carried it. The wire carries one transfer after the other, each for
   latency + nbytes / bandwidth, at full speed while the host waits for one (MPI_Wait and its kin, MPI_Allreduce)
   and at a share of it otherwise. MPI_Test does not wait: with a share of 0 it moves nothing and asks nobody.

   Told by the environment, read at the first transfer; a value that means nothing aborts:
     MPIBENCH_WIRE_LATENCY_S       0 or more; required
     MPIBENCH_WIRE_BANDWIDTH_BPS   bytes per second; required
     MPIBENCH_WIRE_PROGRESS        share of the speed while the host is outside a blocking call, 0 to 1
                                   (1: a network card that moves on alone; 0: no progress at all), or
                                   "start": the call that starts a transfer spends all of its time
     MPIBENCH_WIRE_MOVES           0: moves no data, for exact ends (results are wrong); default 1
     MPIBENCH_WIRE_FAULTY          rank of MPI_COMM_WORLD that has the faults below; default 1
     MPIBENCH_WIRE_LATE_S          the faulty rank enters every all-reduce so much later
     MPIBENCH_WIRE_FLIP_EVERY      n: one bit of every n-th result of the faulty rank is flipped
     MPIBENCH_WIRE_HANG_AFTER      n: after n transfers none of the faulty rank ever completes

   Polite: whoever waits sleeps in short turns and asks, in MPI_Barrier and the collectives of the
   program's own bookkeeping too, so that ranks that share a core with others finish in time. Only the last
   microseconds are spun. MPI_Send, MPI_Recv and what is not named here pass through, and may spin.

   A call that asks for a transfer's completion in a way that is not known here aborts, loudly. */

#define _GNU_SOURCE
#include <math.h>
#include <mpi.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define LARGE_COUNTS (MPI_VERSION >= 4)
#if defined(OMPI_MAJOR_VERSION) && OMPI_MAJOR_VERSION >= 5 /* has some of MPI-4, and calls itself 3.1 */
#define PERSISTENT_COLLECTIVES 1
#else
#define PERSISTENT_COLLECTIVES (MPI_VERSION >= 4)
#endif

enum { NAP_NS = 5000, SPUN_NS = 10000, WOKEN_NS = 200000, LONGEST_NAP_NS = 1000000 };

typedef struct Transfer {
    MPI_Request handle;
    char *receive;
    int64_t nbytes;
    double left_ns; /* that the wire still needs; at most 0: carried */
    bool active, persistent;
    bool arrived; /* the real one is known to be complete; true from the start if no data are moved */
    struct Transfer *next;
} Transfer;

static struct {
    double latency_ns, ns_per_byte, share, late_ns;
    bool in_start, moves;
    long flip_every, hang_after, started, completed; /* the first two 0: never */
} set;

static struct {
    pthread_mutex_t lock;
    Transfer *first; /* in the order in which they were started */
    Transfer *spare; /* of no data: with handles to be used again */
    int64_t at;      /* up to when `left_ns` is accounted for */
    int waiting;     /* threads inside a blocking call */
} wire = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void refuse(const char *what)
{
    fprintf(stderr, "mpibench: interposer.c: %s\n", what);
    fflush(stderr);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL); /* launchers drop what is said just before an abort */
    PMPI_Abort(MPI_COMM_WORLD, 2);
    abort();
}

/* Settings */

static double number(const char *name, double otherwise, double least, double most)
{
    const char *text = getenv(name);
    char *end;
    if (!text && !isnan(otherwise))
        return otherwise;
    double value = text ? strtod(text, &end) : NAN;
    if (!text || end == text || *end || !(value >= least && value <= most)) {
        char line[200];
        bool word = !strcmp(name, "MPIBENCH_WIRE_PROGRESS");
        snprintf(line, sizeof line, "%s=%s: it is a number from %g to %g%s", name, text ? text : "(not set)", least, most,
                 word ? ", or start" : "");
        refuse(line);
    }
    return value;
}

static long whole(const char *name, double otherwise, double most)
{
    double value = number(name, otherwise, 0, most);
    if (value != floor(value)) {
        char line[200];
        snprintf(line, sizeof line, "%s=%s: it is a whole number up to %g", name, getenv(name), most);
        refuse(line);
    }
    return (long)value;
}

static void read_settings(void)
{
    const char *progress = getenv("MPIBENCH_WIRE_PROGRESS");
    int rank, ranks;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    set.latency_ns = 1e9 * number("MPIBENCH_WIRE_LATENCY_S", NAN, 0, 1e3);
    set.ns_per_byte = 1e9 / number("MPIBENCH_WIRE_BANDWIDTH_BPS", NAN, 1, 1e15);
    set.in_start = progress && !strcmp(progress, "start");
    set.share = set.in_start ? 0 : number("MPIBENCH_WIRE_PROGRESS", 1, 0, 1);
    set.moves = whole("MPIBENCH_WIRE_MOVES", 1, 1);
    set.late_ns = 1e9 * number("MPIBENCH_WIRE_LATE_S", 0, 0, 1e3);
    set.flip_every = whole("MPIBENCH_WIRE_FLIP_EVERY", 0, 1e9);
    set.hang_after = whole("MPIBENCH_WIRE_HANG_AFTER", 0, 1e9);
    if (rank != whole("MPIBENCH_WIRE_FAULTY", ranks > 1, ranks - 1)) { /* the others have no faults */
        set.late_ns = 0;
        set.flip_every = set.hang_after = 0;
    }
}

/* Waiting */

static void nap(double ns)
{
    static _Thread_local bool exact;
    if (!exact) /* a sleep ends up to 50 us late by default */
        prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    exact = true;
    struct timespec t = {0, (long)ns};
    nanosleep(&t, NULL);
}

/* One turn of a wait: short while the library must be asked for the real transfer's sake, or the end is near. */
static void rest(double left_ns, bool arrived)
{
    if (!arrived || (left_ns > SPUN_NS && left_ns <= WOKEN_NS + NAP_NS))
        nap(NAP_NS);
    else if (left_ns > SPUN_NS)
        nap(fmin(left_ns - WOKEN_NS, LONGEST_NAP_NS));
}

/* The wire; those that say so need its lock. */

/* Needs the lock. */
static void advance(void)
{
    int64_t t = now();
    double carried = (double)(t - wire.at) * (wire.waiting ? 1 : set.share);
    wire.at = t;
    for (Transfer *x = wire.first; x && carried > 0; x = x->next)
        if (x->active && x->left_ns > 0) {
            double step = fmin(carried, x->left_ns);
            x->left_ns -= step;
            carried -= step;
        }
}

/* Needs the lock. A transfer that is being started has no handle yet, and is never found. */
static Transfer *find(MPI_Request request)
{
    Transfer *x = request == MPI_REQUEST_NULL ? NULL : wire.first;
    while (x && x->handle != request)
        x = x->next;
    return x;
}

/* Needs the lock. */
static void unlink_transfer(Transfer *gone)
{
    Transfer **link = &wire.first;
    while (*link && *link != gone)
        link = &(*link)->next;
    if (*link)
        *link = gone->next;
}

/* Needs the lock. */
static void append(Transfer *x)
{
    Transfer **link = &wire.first;
    while (*link)
        link = &(*link)->next;
    x->next = NULL;
    *link = x;
}

static void wait_inside(int change)
{
    pthread_mutex_lock(&wire.lock);
    advance();
    wire.waiting += change;
    pthread_mutex_unlock(&wire.lock);
}

static bool on_wire(MPI_Request request)
{
    pthread_mutex_lock(&wire.lock);
    Transfer *x = find(request);
    bool there = x && x->active;
    pthread_mutex_unlock(&wire.lock);
    return there;
}

/* Whether a request could be completed now. Asks the library, which moves the real transfer on, until that
   has arrived; without progress only a blocking call asks. */
static bool ready(MPI_Request request, double *left_ns, bool *arrived)
{
    pthread_mutex_lock(&wire.lock);
    advance();
    Transfer *x = find(request);
    bool known = x && x->active, idle = known && x->left_ns > 0 && set.share == 0 && !wire.waiting;
    *left_ns = known ? x->left_ns : 0;
    *arrived = known && x->arrived;
    pthread_mutex_unlock(&wire.lock);
    if (!*arrived && !idle) {
        int flag;
        PMPI_Request_get_status(request, &flag, MPI_STATUS_IGNORE);
        *arrived = flag;
        pthread_mutex_lock(&wire.lock);
        if (known && flag && (x = find(request)))
            x->arrived = true;
        pthread_mutex_unlock(&wire.lock);
    }
    return *arrived && *left_ns <= 0;
}

static void wait_until_ready(MPI_Request request)
{
    double left_ns;
    bool arrived;
    wait_inside(+1);
    while (!ready(request, &left_ns, &arrived))
        rest(left_ns, arrived);
    wait_inside(-1);
}

/* Needs the lock. Take a transfer that is ready off the wire, with the fault that belongs to it. */
static void carried(Transfer *x, MPI_Request *request)
{
    set.completed++;
    if (set.flip_every && set.completed % set.flip_every == 0 && x->nbytes)
        x->receive[x->nbytes / 2] ^= 1;
    x->active = false;
    if (x->persistent)
        return;
    unlink_transfer(x);
    if (set.moves) {
        free(x);
        return;
    }
    *request = MPI_REQUEST_NULL; /* its handle is used again, and stands for nothing */
    x->next = wire.spare;
    wire.spare = x;
}

/* Complete a request that is ready. */
static int take(MPI_Request *request, MPI_Status *status)
{
    pthread_mutex_lock(&wire.lock);
    Transfer *x = find(*request);
    if (x && x->active)
        carried(x, request);
    pthread_mutex_unlock(&wire.lock);
    return PMPI_Wait(request, status);
}

/* The short way for one that is known to be ready: a Wait after the wire has carried it is to cost little. */
static bool take_at_once(MPI_Request *request)
{
    if (*request == MPI_REQUEST_NULL)
        return true;
    pthread_mutex_lock(&wire.lock);
    advance();
    Transfer *x = find(*request);
    bool at_once = x && x->active && x->arrived && x->left_ns <= 0;
    if (at_once)
        carried(x, request);
    pthread_mutex_unlock(&wire.lock);
    return at_once;
}

/* Put a transfer on the wire, before the real one is started: what that costs the host the wire need not wait for. */
static void begin(Transfer *x)
{
    pthread_mutex_lock(&wire.lock);
    advance(); /* what was carried before is not its own */
    unlink_transfer(x);
    append(x);
    x->active = true;
    x->arrived = !set.moves;
    x->left_ns = set.latency_ns + set.ns_per_byte * (double)x->nbytes;
    if (set.hang_after && set.started >= set.hang_after)
        x->left_ns = INFINITY;
    set.started++;
    pthread_mutex_unlock(&wire.lock);
}

/* The real one has been started. */
static void begun(Transfer *x, MPI_Request handle)
{
    if (x->handle != handle) {
        pthread_mutex_lock(&wire.lock);
        x->handle = handle;
        pthread_mutex_unlock(&wire.lock);
    }
    if (set.in_start)
        wait_until_ready(handle);
}

static Transfer *transfer(void *receive, int64_t count, MPI_Datatype type, bool persistent)
{
    static MPI_Datatype known;
    static int item; /* its size; asking costs a cold core a microsecond or two */
    pthread_mutex_lock(&wire.lock);
    if (!item || type != known)
        PMPI_Type_size(known = type, &item);
    Transfer *x = persistent ? NULL : wire.spare;
    if (x)
        wire.spare = x->next;
    else if (!(x = calloc(1, sizeof *x)))
        refuse("out of memory");
    else
        x->handle = MPI_REQUEST_NULL;
    x->receive = receive;
    x->nbytes = count * item;
    x->persistent = persistent;
    pthread_mutex_unlock(&wire.lock);
    return x;
}

/* Before every all-reduce. */
static void enter(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_settings);
    if (set.late_ns > 0) {
        int64_t until = now() + (int64_t)set.late_ns;
        while (now() < until)
            rest((double)(until - now()), true);
    }
}

/* A request that stands for a transfer of no data: a persistent one, never started, with a handle of its own. */
static int start_nothing(Transfer *x, MPI_Request *request)
{
    int error = MPI_SUCCESS;
    if (x->handle == MPI_REQUEST_NULL)
        error = PMPI_Send_init(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_SELF, &x->handle);
    *request = x->handle;
    return error;
}

/* All-reduce, in its forms */

#define ALLREDUCE(suffix, Count)                                                                                       \
    int MPI_Iallreduce##suffix(const void *send, void *receive, Count count, MPI_Datatype type, MPI_Op op,             \
                               MPI_Comm comm, MPI_Request *request)                                                    \
    {                                                                                                                  \
        enter();                                                                                                       \
        Transfer *x = transfer(receive, (int64_t)count, type, false);                                                  \
        begin(x);                                                                                                      \
        int error = set.moves ? PMPI_Iallreduce##suffix(send, receive, count, type, op, comm, request)                 \
                              : start_nothing(x, request);                                                             \
        if (error)                                                                                                     \
            refuse("the MPI library's own all-reduce failed");                                                         \
        begun(x, *request);                                                                                            \
        return MPI_SUCCESS;                                                                                            \
    }                                                                                                                  \
    int MPI_Allreduce##suffix(const void *send, void *receive, Count count, MPI_Datatype type, MPI_Op op,              \
                              MPI_Comm comm)                                                                           \
    {                                                                                                                  \
        MPI_Request request;                                                                                           \
        wait_inside(+1);                                                                                               \
        MPI_Iallreduce##suffix(send, receive, count, type, op, comm, &request);                                        \
        int error = MPI_Wait(&request, MPI_STATUS_IGNORE);                                                             \
        wait_inside(-1);                                                                                               \
        return error;                                                                                                  \
    }

#define ALLREDUCE_INIT(suffix, Count)                                                                                  \
    int MPI_Allreduce_init##suffix(const void *send, void *receive, Count count, MPI_Datatype type, MPI_Op op,         \
                                   MPI_Comm comm, MPI_Info info, MPI_Request *request)                                 \
    {                                                                                                                  \
        int error = PMPI_Allreduce_init##suffix(send, receive, count, type, op, comm, info, request);                  \
        if (error)                                                                                                     \
            return error;                                                                                              \
        Transfer *x = transfer(receive, (int64_t)count, type, true);                                                   \
        x->handle = *request;                                                                                          \
        pthread_mutex_lock(&wire.lock);                                                                                \
        append(x);                                                                                                     \
        pthread_mutex_unlock(&wire.lock);                                                                              \
        return MPI_SUCCESS;                                                                                            \
    }

ALLREDUCE(, int)
#if LARGE_COUNTS
ALLREDUCE(_c, MPI_Count)
ALLREDUCE_INIT(_c, MPI_Count)
#endif
#if PERSISTENT_COLLECTIVES
ALLREDUCE_INIT(, int)
#endif

int MPI_Start(MPI_Request *request)
{
    pthread_mutex_lock(&wire.lock);
    Transfer *x = find(*request);
    pthread_mutex_unlock(&wire.lock);
    if (!x)
        return PMPI_Start(request);
    enter();
    begin(x);
    if (set.moves && PMPI_Start(request))
        refuse("the MPI library's own MPI_Start failed");
    begun(x, *request);
    return MPI_SUCCESS;
}

int MPI_Startall(int count, MPI_Request requests[])
{
    int error = MPI_SUCCESS;
    for (int i = 0; i < count && !error; i++)
        error = MPI_Start(&requests[i]);
    return error;
}

int MPI_Finalize(void)
{
    for (Transfer *x = wire.spare; x; x = x->next)
        PMPI_Request_free(&x->handle);
    return PMPI_Finalize();
}

/* Completion */

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    if (take_at_once(request))
        return PMPI_Wait(request, status);
    wait_until_ready(*request);
    return take(request, status);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    double left_ns;
    bool arrived;
    if (!on_wire(*request))
        return PMPI_Test(request, flag, status);
    *flag = ready(*request, &left_ns, &arrived);
    return *flag ? take(request, status) : MPI_SUCCESS;
}

static MPI_Status *status_of(MPI_Status *statuses, int i)
{
    return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[i];
}

int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    int error = MPI_SUCCESS;
    for (int i = 0; i < count && !error; i++)
        error = MPI_Wait(&requests[i], status_of(statuses, i));
    return error;
}

int MPI_Testall(int count, MPI_Request requests[], int *flag, MPI_Status statuses[])
{
    double left_ns;
    bool arrived;
    *flag = 1;
    for (int i = 0; i < count; i++)
        *flag &= ready(requests[i], &left_ns, &arrived);
    return *flag ? MPI_Waitall(count, requests, statuses) : MPI_SUCCESS;
}

/* Complete up to `most` of the requests that are ready; at least one is on the wire. */
static int take_some(int count, MPI_Request requests[], int most, int *done, int indices[], MPI_Status statuses[])
{
    double left_ns;
    bool arrived;
    int error = MPI_SUCCESS;
    *done = 0;
    for (int i = 0; i < count && *done < most && !error; i++) {
        if (requests[i] == MPI_REQUEST_NULL)
            continue;
        if (!on_wire(requests[i])) /* an inactive persistent one may be meant, which cannot be told */
            refuse("MPI_Waitany, Testany, Waitsome, Testsome: one of the requests is no transfer of the wire");
        if (ready(requests[i], &left_ns, &arrived)) {
            indices[*done] = i;
            error = take(&requests[i], status_of(statuses, *done));
            ++*done;
        }
    }
    return error;
}

static bool any_on_wire(int count, MPI_Request requests[])
{
    for (int i = 0; i < count; i++)
        if (on_wire(requests[i]))
            return true;
    return false;
}

int MPI_Testsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    if (!any_on_wire(count, requests))
        return PMPI_Testsome(count, requests, done, indices, statuses);
    return take_some(count, requests, count, done, indices, statuses);
}

static int wait_some(int count, MPI_Request requests[], int most, int *done, int indices[], MPI_Status statuses[])
{
    int error;
    wait_inside(+1);
    while (!(error = take_some(count, requests, most, done, indices, statuses)) && *done == 0)
        nap(NAP_NS);
    wait_inside(-1);
    return error;
}

int MPI_Waitsome(int count, MPI_Request requests[], int *done, int indices[], MPI_Status statuses[])
{
    if (!any_on_wire(count, requests))
        return PMPI_Waitsome(count, requests, done, indices, statuses);
    return wait_some(count, requests, count, done, indices, statuses);
}

int MPI_Testany(int count, MPI_Request requests[], int *index, int *flag, MPI_Status *status)
{
    if (!any_on_wire(count, requests))
        return PMPI_Testany(count, requests, index, flag, status);
    int done, error = take_some(count, requests, 1, &done, index, status);
    *flag = done;
    if (!done)
        *index = MPI_UNDEFINED;
    return error;
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    if (!any_on_wire(count, requests))
        return PMPI_Waitany(count, requests, index, status);
    int done;
    return wait_some(count, requests, 1, &done, index, status);
}

int MPI_Request_free(MPI_Request *request)
{
    if (on_wire(*request))
        refuse("MPI_Request_free of a transfer on the wire: not known here");
    pthread_mutex_lock(&wire.lock);
    Transfer *x = find(*request); /* a persistent one */
    if (x)
        unlink_transfer(x);
    pthread_mutex_unlock(&wire.lock);
    free(x);
    return PMPI_Request_free(request);
}

#define REFUSED(call, signature, request, ...)                                                                         \
    int MPI_##call signature                                                                                           \
    {                                                                                                                  \
        if (on_wire(request))                                                                                          \
            refuse("MPI_" #call " of a transfer on the wire: not known here");                                         \
        return PMPI_##call(__VA_ARGS__);                                                                               \
    }

#define REFUSED_LIST(call, signature, ...)                                                                             \
    int MPI_##call signature                                                                                           \
    {                                                                                                                  \
        for (int i = 0; i < count; i++)                                                                                \
            if (on_wire(requests[i]))                                                                                  \
                refuse("MPI_" #call " of a transfer on the wire: not known here");                                     \
        return PMPI_##call(__VA_ARGS__);                                                                               \
    }

REFUSED(Cancel, (MPI_Request * request), *request, request)
REFUSED(Request_get_status, (MPI_Request request, int *flag, MPI_Status *status), request, request, flag, status)
#if MPI_VERSION > 4 || (MPI_VERSION == 4 && MPI_SUBVERSION >= 1)
REFUSED_LIST(Request_get_status_all, (int count, const MPI_Request requests[], int *flag, MPI_Status statuses[]), count,
             requests, flag, statuses)
REFUSED_LIST(Request_get_status_any, (int count, const MPI_Request requests[], int *index, int *flag, MPI_Status *status),
             count, requests, index, flag, status)
REFUSED_LIST(Request_get_status_some,
             (int count, const MPI_Request requests[], int *done, int indices[], MPI_Status statuses[]), count, requests,
             done, indices, statuses)
#endif

/* The bookkeeping's collectives, politely: these do not go over the wire. */

#define POLITE(call, icall, signature, ...)                                                                            \
    int MPI_##call signature                                                                                           \
    {                                                                                                                  \
        MPI_Request request;                                                                                           \
        int flag = 0, error = PMPI_##icall(__VA_ARGS__, &request);                                                     \
        while (!error && !(error = PMPI_Test(&request, &flag, MPI_STATUS_IGNORE)) && !flag)                            \
            nap(NAP_NS);                                                                                               \
        return error;                                                                                                  \
    }

#define COLLECTIVES(suffix, Count, Place)                                                                              \
    POLITE(Bcast##suffix, Ibcast##suffix, (void *buffer, Count count, MPI_Datatype type, int root, MPI_Comm comm),     \
           buffer, count, type, root, comm)                                                                            \
    POLITE(Gather##suffix, Igather##suffix,                                                                            \
           (const void *send, Count count, MPI_Datatype type, void *receive, Count each, MPI_Datatype into, int root,  \
            MPI_Comm comm),                                                                                            \
           send, count, type, receive, each, into, root, comm)                                                         \
    POLITE(Gatherv##suffix, Igatherv##suffix,                                                                          \
           (const void *send, Count count, MPI_Datatype type, void *receive, const Count *each, const Place *at,       \
            MPI_Datatype into, int root, MPI_Comm comm),                                                               \
           send, count, type, receive, each, at, into, root, comm)                                                     \
    POLITE(Allgather##suffix, Iallgather##suffix,                                                                      \
           (const void *send, Count count, MPI_Datatype type, void *receive, Count each, MPI_Datatype into,            \
            MPI_Comm comm),                                                                                            \
           send, count, type, receive, each, into, comm)                                                               \
    POLITE(Allgatherv##suffix, Iallgatherv##suffix,                                                                    \
           (const void *send, Count count, MPI_Datatype type, void *receive, const Count *each, const Place *at,       \
            MPI_Datatype into, MPI_Comm comm),                                                                         \
           send, count, type, receive, each, at, into, comm)

POLITE(Barrier, Ibarrier, (MPI_Comm comm), comm)
COLLECTIVES(, int, int)
#if LARGE_COUNTS
COLLECTIVES(_c, MPI_Count, MPI_Aint)
#endif
