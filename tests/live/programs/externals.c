// Pushes ids for CUPTI as a profiler does: TURNS times, a kernel without an id, one in `100 + turn`, one in `200 + turn` of another kind
// inside that, and one after that. Prints whether each id was popped as it was pushed.
// With `wrong`, it also pops an id too many, and pushes ids of kinds that don't exist.
// flags: -L $SOFTGPU -lcuda -ldl -pthread
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef void *Handle;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle), cuCtxSynchronize(void);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static void quick(const void *launch, void **args) { (void)launch, (void)args; }
static int (*push)(unsigned, uint64_t), (*pop)(unsigned, uint64_t *);
static Handle kernels[4], context;
static int bad, turns;

static void launch(int n) { bad |= cuLaunchKernel(kernels[n], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); }
static void popped(unsigned kind, uint64_t wanted) {
  uint64_t id = 0;
  bad |= pop(kind, &id) != 0 || id != wanted;
}
static void *another(void *none) {
  bad |= cuCtxSetCurrent(context);
  launch(0);
  return none;
}

int main(int argc, char **argv) {
  Handle module;
  turns = atoi(argv[1]);
  void (*known)(const char *, void *) = dlsym(dlopen("libcuda.so.1", RTLD_NOW), "softgpu_register_kernel");
  bad |= cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
  bad |= cuModuleLoadData(&module, ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry none() { ret; }\n.visible .entry outer() { ret; }\n"
                                   ".visible .entry inner() { ret; }\n.visible .entry after() { ret; }\n");
  for (int i = 0; i < 4; i++) {
    const char *names[] = {"none", "outer", "inner", "after"};
    if (known) known(names[i], quick);
    bad |= cuModuleGetFunction(&kernels[i], module, names[i]);
  }
  const char *path = getenv("CUPTI_LIBRARY");
  Handle cupti = dlopen(path ? path : "libcupti.so.13", RTLD_NOW);
  *(void **)&push = dlsym(cupti, "cuptiActivityPushExternalCorrelationId");
  *(void **)&pop = dlsym(cupti, "cuptiActivityPopExternalCorrelationId");
  for (int i = 0; i < turns; i++) {
    launch(0);
    bad |= push(3, 100 + i);
    launch(1);
    bad |= push(4, 200 + i);
    launch(2);
    // Another thread has none.
    pthread_t thread;
    pthread_create(&thread, 0, another, 0), pthread_join(thread, 0);
    popped(4, 200 + i);
    launch(3);
    popped(3, 100 + i);
  }
  if (argc > 2) bad |= pop(3, 0) != 18 || push(9, 1) != 1 || push(0, 1) != 1;
  launch(0);
  bad |= cuCtxSynchronize();
  printf("{\"turns\": %d, \"bad\": %d}\n", turns, bad);
  return bad;
}
