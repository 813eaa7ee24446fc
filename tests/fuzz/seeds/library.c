// What the readers of files look for: functions with and without lines, moved parts, tables of jumps, calls at the end, types,
// USDT probes, indirect functions, dependencies. make.sh compiles it.

#define PROBE(name, arguments, ...)                                                                                         \
    __asm__ volatile("990: nop\n"                                                                                           \
                     ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                                          \
                     ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                                          \
                     "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                                            \
                     "993: .8byte 990b, _.stapsdt.base, semaphore\n"                                                        \
                     ".asciz \"shop\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"                                     \
                     "994: .balign 4\n.popsection\n"                                                                        \
                     ".ifndef _.stapsdt.base\n.pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"        \
                     ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n"    \
                     ".popsection\n.endif\n" ::__VA_ARGS__)

typedef unsigned long word;
enum color { RED, GREEN };
struct pair { long a, b; };
union either { long a; double b; };

extern void *malloc(word);
__attribute__((section(".probes"))) unsigned short semaphore;
volatile long total;
static const char *names[] = { "one", "two", "three" };

static inline __attribute__((always_inline)) int twice(int n) { return n * 2; }

__attribute__((noinline)) int probed(int n) {
    PROBE("sold", "-4@%0 8@$5 8@total(%%rip) 1@8(%%rax,%%rbx,4)", "r"(n), "i"(0));
    return twice(n) + (int)total;
}

__attribute__((noinline, cold)) void unlikely_case(void) { total = -1; }

int jumps(int n) {
    switch (n) {
    case 0: return probed(3);
    case 1: total = 7; break;
    case 2: return twice(total);
    case 3: total++; break;
    case 4: unlikely_case(); break;
    case 5: return 11;
    case 6: total *= 3; return 9;
    }
    return names[n % 3][0];
}

enum color color_of(const struct pair *it) { return it->a > it->b ? GREEN : RED; }
struct pair both(long a) { return (struct pair){ a, total }; }
double half(double it) { return it / 2; }
_Bool is_even(word it) { return it % 2 == 0; }
const char *name_of(union either it) { return names[it.a % 3]; }
word at_the_end(int n) { return (word)probed(n + 1); }
void *memory(word n) { return malloc(n); }

static word first_way(void) { return 1; }
static word (*choose(void))(void) { return first_way; }
word indirect(void) __attribute__((ifunc("choose")));

// A name of C++'s, of a template.
int templated(int n) __asm__("_ZN2ns4tmplIiSt6vectorIiSaIiEEEEvT_T0_");
int templated(int n) { return n - (int)total; }
