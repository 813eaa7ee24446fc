// Loads plugins and unloads them: ROUNDS LIBRARY:CALLS…. In each round it loads one library after another, calls its
// `entry` so many times, each of which launches a kernel, and unloads it. Where it says REPLACE:FROM:TO in place of a
// library, it renames a file. Where it says AWAIT:PATH, it waits until its parent, the tracer, has that file open. FIRST:PATH
// loads a library before it starts CUDA, and unloads it there.
// Prints how many launches there were and at how many addresses `entry` was.
// flags: -O1 -w -rdynamic -L $SOFTGPU -lcudart -lcuda -ldl -lpthread
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef void *Handle;
typedef struct { unsigned grid[3], block[3], block_idx[3], shared_bytes; void *shared; } SoftLaunch;
void softgpu_register_kernel_params(const char *, void (*)(const SoftLaunch *, void **), const size_t *, size_t);
int cuInit(unsigned), cuDevicePrimaryCtxRetain(Handle *, int), cuCtxSetCurrent(Handle), cuCtxSynchronize(void);
int cuModuleLoadData(Handle *, const void *), cuModuleGetFunction(Handle *, Handle, const char *);
int cuLaunchKernel(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void **, void **);
static const char ptx[] = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry _Z1kv() { ret; }\n";
static void run(const SoftLaunch *launch, void **args) {}
static Handle context, module, loaded_first;
Handle kernel;
int launches;
static int bad, n_addresses;
static void *addresses[64];
__attribute__((noinline)) static void launch(void) { bad |= cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0); launches++; }
static void note(void *address) {
  for (int i = 0; i < n_addresses; i++) if (addresses[i] == address) return;
  if (n_addresses < 64) addresses[n_addresses++] = address;
}
static void call(const char *library, int calls) {
  void *handle = dlopen(library, RTLD_NOW);
  void (*entry)(void (*)(void)) = handle ? dlsym(handle, "entry") : 0;
  if (!entry) { bad = 1; return; }
  note(entry);
  for (int i = 0; i < calls; i++) entry(launch);
  dlclose(handle);
}
static int tracer_has(const char *path) {
  char folder[64], link[PATH_MAX], there[PATH_MAX];
  snprintf(folder, sizeof folder, "/proc/%d/fd", getppid());
  DIR *descriptors = opendir(folder);
  int found = 0;
  for (struct dirent *it; descriptors && (it = readdir(descriptors));) {
    snprintf(link, sizeof link, "%s/%s", folder, it->d_name);
    ssize_t n = readlink(link, there, sizeof there - 1);
    if (n > 0) { there[n] = 0; found |= strcmp(there, path) == 0; }
  }
  if (descriptors) closedir(descriptors);
  return found;
}
int main(int argc, char **argv) {
  for (int i = 2; i < argc; i++)
    if (!strncmp(argv[i], "FIRST:", 6)) note(dlsym(loaded_first = dlopen(argv[i] + 6, RTLD_NOW), "entry"));
  softgpu_register_kernel_params("_Z1kv", run, 0, 0);
  bad |= cuInit(0) | cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
  bad |= cuModuleLoadData(&module, ptx) | cuModuleGetFunction(&kernel, module, "_Z1kv");
  for (int round = 0; round < atoi(argv[1]); round++)
    for (int i = 2; i < argc; i++) {
      char text[PATH_MAX], path[PATH_MAX];
      snprintf(text, sizeof text, "%s", argv[i]);
      char *name = strtok(text, ":"), *first = strtok(0, ":"), *second = strtok(0, ":");
      if (!strcmp(name, "REPLACE")) bad |= rename(first, second);
      else if (!strcmp(name, "AWAIT")) { if (realpath(first, path)) while (!tracer_has(path)) sched_yield(); }
      else if (!strcmp(name, "FIRST")) bad |= dlclose(loaded_first);
      else call(name, atoi(first));
    }
  bad |= cuCtxSynchronize();
  printf("bad %d launches %d addresses %d\n", bad, launches, n_addresses);
  return bad;
}
