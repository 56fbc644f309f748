/* Open MPI's allreduce on known numbers: allreduce_mpi FILE ITERATIONS IN_PLACE MARGIN_S CASE...
 *
 * A CASE is dtype:op:count:seed. Rank 0 writes the results of all cases to FILE, one after the other, and prints a line
 * for each: for every iteration the seconds from an agreed instant, which all learn up to MARGIN_S before, to when the
 * slowest rank was done, and the ticks that the host has taken from this machine meanwhile. Every rank must have the
 * same result, bit for bit.
 */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const double AWAKE_S = 0.001;
static double margin_s;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

static void sleep_for(double seconds) {
    if (seconds > 0) {
        struct timespec time = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
        nanosleep(&time, NULL);
    }
}

static double stolen(void) {
    long steal = 0;
    FILE *file = fopen("/proc/stat", "r");
    if (file) {
        if (fscanf(file, "cpu %*d %*d %*d %*d %*d %*d %*d %ld", &steal) != 1) steal = 0;
        fclose(file);
    }
    return (double)steal;
}

/* All numbers are whole and small, so that no order of adding or multiplying them rounds. */
static int number(int prod, long i, int rank, int seed) {
    long mixed = i * 7 + (long)rank * 13 + (i % 11) * rank + seed;
    static const int factors[] = {-2, -1, 1, 2};
    return prod ? factors[mixed % 4] : (int)(mixed % 17) - 8;
}

static void fill(void *buffer, int is_float, int prod, long count, int rank, int seed) {
    for (long i = 0; i < count; i++) {
        if (is_float) ((float *)buffer)[i] = (float)number(prod, i, rank, seed);
        else ((int *)buffer)[i] = number(prod, i, rank, seed);
    }
}

static double start_together(void) {
    double mine = now() + margin_s, instant;
    MPI_Allreduce(&mine, &instant, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    sleep_for(instant - AWAKE_S - now());
    while (now() < instant) sched_yield();
    return instant;
}

static void die(const char *what) {
    fprintf(stderr, "allreduce_mpi: %s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void check_same(const void *found, size_t bytes) {
    char *first = malloc(bytes + 1);
    memcpy(first, found, bytes);
    MPI_Bcast(first, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (memcmp(first, found, bytes)) die("a rank has another result than rank 0");
    free(first);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 6) die("FILE ITERATIONS IN_PLACE MARGIN_S CASE...");
    margin_s = atof(argv[4]);
    int iterations = atoi(argv[2]), in_place = atoi(argv[3]);
    FILE *file = rank ? NULL : fopen(argv[1], "wb");
    if (!rank && !file) die("the file cannot be written");
    for (int place = 5; place < argc; place++) {
        char dtype[16], name[16];
        long count;
        int seed;
        if (sscanf(argv[place], "%15[^:]:%15[^:]:%ld:%d", dtype, name, &count, &seed) != 4)
            die("CASE is dtype:op:count:seed");
        int is_float = !strcmp(dtype, "float32"), prod = !strcmp(name, "prod");
        if (!is_float && strcmp(dtype, "int32")) die("dtype is float32 or int32");
        MPI_Op op = prod ? MPI_PROD : !strcmp(name, "min") ? MPI_MIN : !strcmp(name, "max") ? MPI_MAX : MPI_SUM;
        if (op == MPI_SUM && strcmp(name, "sum")) die("op is sum, min, max or prod");
        MPI_Datatype type = is_float ? MPI_FLOAT : MPI_INT;
        size_t bytes = 4 * (size_t)count;
        void *mine = malloc(bytes + 1), *result = malloc(bytes + 1);
        for (int turn = 0; turn < iterations; turn++) {
            fill(mine, is_float, prod, count, rank, seed);
            memcpy(result, mine, bytes);
            double steal = stolen(), start = start_together(), slowest[2];
            MPI_Allreduce(in_place ? MPI_IN_PLACE : mine, result, (int)count, type, op, MPI_COMM_WORLD);
            double took[2] = {now() - start, 0};
            sleep_for(0.001 + took[0] / 4); /* let the others finish */
            took[1] = stolen() - steal;
            MPI_Reduce(took, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
            if (!rank) printf("%.9f:%.0f%c", slowest[0], slowest[1], turn + 1 < iterations ? ' ' : '\n');
        }
        check_same(result, bytes);
        if (file && fwrite(result, 1, bytes, file) != bytes) die("the file cannot be written");
        free(mine);
        free(result);
    }
    if (file && fclose(file)) die("the file cannot be written");
    MPI_Finalize();
    return 0;
}
