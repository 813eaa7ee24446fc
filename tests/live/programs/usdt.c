// Passes USDT probes of its own, whose notes are as SystemTap's <sys/sdt.h> makes them, and prints what their arguments are:
//   sell N         passes `shop:sold` at three places, N times each; prints the sums of their prices
//   kinds          passes `shop:kinds` and `shop:wide`, whose arguments are in places of every kind; prints them in order
//   odd            passes probes whose arguments cannot be read: of floating point, in memory that is not there
//   guarded N      passes `shop:guarded` N times, if its semaphore says that somebody wants it
//   asked          for each line of input, prints the semaphore of `shop:guarded`, and passes it if that is not 0
//   fork N         a child sells N times, then itself
//   load FILE N    loads a library and calls its sell(N); this program, compiled with -DLIBRARY -shared, is one
// flags: -O2 -ldl
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// A place of a probe: one `nop`, and the note that describes it.
#define PLACE(provider, name, semaphore, arguments, ...)                                                                     \
  __asm__ volatile(                                                                                                          \
      "990: nop\n"                                                                                                           \
      ".pushsection .note.stapsdt,\"\",\"note\"\n"                                                                           \
      ".balign 4\n"                                                                                                          \
      ".4byte 992f-991f, 994f-993f, 3\n"                                                                                     \
      "991: .asciz \"stapsdt\"\n"                                                                                            \
      "992: .balign 4\n"                                                                                                     \
      "993: .8byte 990b, _.stapsdt.base, " semaphore "\n"                                                                    \
      ".asciz \"" provider "\"\n .asciz \"" name "\"\n .asciz \"" arguments "\"\n"                                           \
      "994: .balign 4\n"                                                                                                     \
      ".popsection\n"                                                                                                        \
      ".ifndef _.stapsdt.base\n"                                                                                             \
      ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                                                \
      ".weak _.stapsdt.base\n .hidden _.stapsdt.base\n"                                                                      \
      "_.stapsdt.base: .space 1\n .size _.stapsdt.base, 1\n"                                                                 \
      ".popsection\n"                                                                                                        \
      ".endif\n" ::__VA_ARGS__)

__attribute__((visibility("hidden"), section(".probes"), used)) volatile unsigned short shop_guarded_semaphore = 0;
static volatile long total;
static volatile short small = -7;

// Three places: their arguments are in registers, in memory and constants, and missing but for one.
__attribute__((noinline)) void sell(int n) {
  long sums[3] = {0, 0, 0};
  for (int i = 1; i <= n; i++) {
    volatile int price = -i;
    const char *what = i % 2 ? "odd" : "even";
    PLACE("shop", "sold", "0", "-4@%0 8@%1 8@%2", "r"(i), "r"(what), "r"(1000L + i));
    PLACE("shop", "sold", "0", "-4@%0 8@%1 8@%2", "m"(price), "r"("stack"), "i"(77));
    PLACE("shop", "sold", "0", "4@%0", "r"(3 * i));
    sums[0] += i; sums[1] += price; sums[2] += 3 * i;
  }
  printf("sold %ld %ld %ld\n", sums[0], sums[1], sums[2]); fflush(stdout);
}

#ifndef LIBRARY
static void kinds(void) {
  static long table[8] = {10, 11, 12, 13, 14, 15, 16, 17};
  long in_memory = -123456789012345;
  signed char byte = -5;
  unsigned short half = 65000;
  unsigned word = 4000000000u;
  long index = 3;
  total = 314159;
  PLACE("shop", "kinds", "0", "-1@%0 2@%1 4@%2 -4@%2 8@%3 -8@%4 8@%5 -2@%6 8@16(%7,%8,8) 8@(%7) -4@%9 1@%10", "q"(byte),
        "r"(half), "r"(word), "r"(table[1]), "m"(in_memory), "m"(total), "m"(small), "r"(table), "r"(index), "i"(-5), "i"(250));
  printf("%d %u %u %d %ld %ld %ld %d %ld %ld %d %d\n", byte, half, word, (int)word, table[1], in_memory, total, small,
         table[2 + index], table[0], -5, 250);
  // The second byte of a register; numbered registers; a variable and a distance; no size.
  register long r12 __asm__("r12") = 0x1122334455667788;
  PLACE("shop", "wide", "0", "1@%h0 -1@%h0 %0 8@%1 4@%k1 2@%w1 1@%b1 8@8+%2 8@%P2+16(%%rip)", "Q"(0xfedcL), "r"(r12),
        "m"(table));
  printf("%d %d %ld %ld %ld %ld %ld %ld %ld\n", 0xfe, (signed char)0xfe, 0xfedcL, r12, 0x55667788L, 0x7788L, 0x88L, table[1],
         table[2]);
}

static void odd(void) {
  double fraction = 0.5;
  PLACE("shop", "fraction", "0", "8f@%0 -4@%1", "x"(fraction), "r"(7));
  PLACE("shop", "nowhere", "0", "8@(%0) 4@%1", "r"(8L), "i"(7));
}

static void guarded(int n) {
  for (int i = 1; i <= n; i++)
    if (shop_guarded_semaphore) PLACE("shop", "guarded", "shop_guarded_semaphore", "-4@%0", "r"(i));
}

static void asked(void) {
  char line[16];
  printf("ready %d\n", getpid()); fflush(stdout);
  while (fgets(line, sizeof line, stdin)) {
    printf("%d\n", shop_guarded_semaphore); fflush(stdout);
    guarded(1);
  }
}

static void load(const char *file, int n) {
  void *library = dlopen(file, RTLD_NOW);
  if (!library) { fputs(dlerror(), stderr); exit(1); }
  ((void (*)(int))dlsym(library, "sell"))(n);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  int n = atoi(argv[argc - 1]);
  PLACE("till", "open", "0", "");
  PLACE("till", "closed", "0", "8@%0", "i"(1));
  PLACE("shop", "closed", "0", "8@%0", "i"(2));
  if (!strcmp(what, "sell")) sell(n);
  if (!strcmp(what, "kinds")) kinds();
  if (!strcmp(what, "odd")) odd();
  if (!strcmp(what, "guarded")) guarded(n);
  if (!strcmp(what, "asked")) asked();
  if (!strcmp(what, "fork")) {
    if (fork() == 0) { sell(n); _exit(0); }
    wait(0);
    sell(n);
  }
  if (!strcmp(what, "load")) load(argv[2], n);
  return 0;
}
#endif
