// Shapes of frames, each of which calls the callback at its bottom. Built with and without frame
// pointers and optimisation. `noinline` and the volatile sink keep the frames apart.
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*callback_t)(void);
volatile long sink;

#define KEEP __attribute__((noinline, noclone))

KEEP static void call(callback_t f) { f(); sink++; }
KEEP static void plain(callback_t f, long a, long b, long c) { long x[8]; for (int i = 0; i < 8; i++) x[i] = a * i + b; call(f); sink += x[c & 7] + a * b; }
KEEP static void with_alloca(callback_t f, long n) { char *p = alloca(n); memset(p, 1, n); call(f); sink += p[n / 2]; }
KEEP static void realigned(callback_t f, long n) { _Alignas(64) char x[256]; memset(x, n, sizeof x); call(f); sink += x[n & 255]; }
KEEP static void realigned_alloca(callback_t f, long n) { _Alignas(64) char x[128]; char *p = alloca(n); memset(p, 2, n); memset(x, n, sizeof x); call(f); sink += x[n & 127] + p[0]; }
KEEP static void tail(callback_t f, long n) { sink += n; return call(f); }
KEEP static long many(callback_t f, long a, long b, long c, long d, long e, long g, long h, long i) { long s = a ^ b * c; call(f); s += a + b + c + d + e + g + h + i; call(f); return s - sink; }
KEEP static void recurse(callback_t f, int depth) { volatile char pad[24]; pad[0] = depth; if (depth) recurse(f, depth - 1); else call(f); sink += pad[0]; }
__attribute__((noinline, noreturn)) static void never(callback_t f, jmp_buf *back) { call(f); longjmp(*back, 1); }
KEEP static void ends_in_noreturn(callback_t f) { jmp_buf back; if (!setjmp(back)) never(f, &back); sink++; }
static callback_t compared;
static int compare(const void *a, const void *b) { if (compared) { callback_t f = compared; compared = 0; f(); } return *(const int *)a - *(const int *)b; }
KEEP static void through_libc(callback_t f) { int x[64]; for (int i = 0; i < 64; i++) x[i] = i * 7919 % 64; compared = f; qsort(x, 64, sizeof *x, compare); sink += x[3]; }

static callback_t handled;
static void handle(int signal) { (void)signal; plain(handled, 1, 2, 3); }
KEEP static void interrupted(int times) { for (int i = 0; i < times; i++) raise(SIGUSR1); sink++; }

// For one thread of a process.
void signalled(callback_t f, long seed) {
    handled = f;
    signal(SIGUSR1, handle);
    interrupted(2 + (int)(seed % 2));
    signal(SIGUSR1, SIG_DFL);
}

void shapes(callback_t f, long seed) {
    for (long i = 0; i < 3; i++) {
        plain(f, seed, i, i + 1);
        with_alloca(f, 100 + (seed * 37 + i * 91) % 3000);
        realigned(f, i);
        realigned_alloca(f, 64 + (seed * 13 + i) % 500);
        tail(f, i);
        sink += many(f, i, 1, 2, 3, 4, 5, 6, 7);
        recurse(f, (int)((seed * 7 + i * 31) % 150));
        ends_in_noreturn(f);
        through_libc(f);
    }
}
