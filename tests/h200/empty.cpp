// An injected library that does nothing: what being injected costs by itself.
extern "C" int InitializeInjection(void) { return 1; }
