// Callbacks while an exception is under way: from destructors that unwinding runs, and from
// handlers, some of which throw again.
typedef void (*callback_t)();
extern "C" { extern volatile long sink_cpp; volatile long sink_cpp; }

struct Guard {
    callback_t f;
    ~Guard() { f(); sink_cpp++; }
};

__attribute__((noinline)) static void down(callback_t f, int n) {
    Guard guard{f};
    if (n == 0) throw 7;
    try {
        down(f, n - 1);
    } catch (int) {
        f();
        if (n % 3 == 0) throw;
        throw n;
    }
}

extern "C" void throws(callback_t f, long seed) {
    for (int i = 0; i < 3; i++) {
        try {
            down(f, (seed + i) % 9);
        } catch (...) {
            f();
        }
    }
}
