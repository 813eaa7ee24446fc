// An injected library that does nothing, to measure the cost of injection itself.
extern "C" int InitializeInjection(void) { return 1; }
