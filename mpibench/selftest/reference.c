/* The hot loops of mpibench in C: a barrier, a stamp, the operation, a stamp, again and again.

   Loaded into the measuring process, it is handed that process's own communicator, request and
   buffers by address, so that nothing differs but the language. Stamps are CLOCK_MONOTONIC, as
   Python's perf_counter_ns. Every function returns MPI's error code.

   MPI_Allreduce_init is not called here: older libraries lack it, and the persistent request is
   made by the caller. */

#include <mpi.h>
#include <stdint.h>
#include <time.h>

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        int error = (call);                                                                                            \
        if (error != MPI_SUCCESS)                                                                                      \
            return error;                                                                                              \
    } while (0)

/* A pointer in one MPI library, an int in another: tells whether the caller's handles mean anything here. */
int handle_bytes(void) { return (int)sizeof(MPI_Comm); }

int library_version(char *text, int *length) { return MPI_Get_library_version(text, length); }

int loop_allreduce(const MPI_Comm *comm, const void *send, void *receive, int count, int calls, int64_t *begin,
                   int64_t *end)
{
    for (int i = 0; i < calls; i++) {
        TRY(MPI_Barrier(*comm));
        begin[i] = now();
        TRY(MPI_Allreduce(send, receive, count, MPI_FLOAT, MPI_SUM, *comm));
        end[i] = now();
    }
    return MPI_SUCCESS;
}

int loop_nonblocking(const MPI_Comm *comm, const void *send, void *receive, int count, int calls, int64_t *begin,
                     int64_t *end)
{
    for (int i = 0; i < calls; i++) {
        MPI_Request request;
        TRY(MPI_Barrier(*comm));
        begin[i] = now();
        TRY(MPI_Iallreduce(send, receive, count, MPI_FLOAT, MPI_SUM, *comm, &request));
        TRY(MPI_Wait(&request, MPI_STATUS_IGNORE));
        end[i] = now();
    }
    return MPI_SUCCESS;
}

int loop_persistent(const MPI_Comm *comm, MPI_Request *request, int calls, int64_t *begin, int64_t *end)
{
    for (int i = 0; i < calls; i++) {
        TRY(MPI_Barrier(*comm));
        begin[i] = now();
        TRY(MPI_Start(request));
        TRY(MPI_Wait(request, MPI_STATUS_IGNORE));
        end[i] = now();
    }
    return MPI_SUCCESS;
}
