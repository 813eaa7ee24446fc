// Loads an object by the system's libbpf, attaches what libbpf attaches by the names of sections, and calls getppid:
//   loads FILE CALLS MAP…
// Prints how many programs were loaded and attached, and of each map with values per CPU the sum at this process's key. A map is
// named by what its name begins with; the part in Linux ends with a k.
// flags: -lbpf
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct bpf_map *linux_part(struct bpf_object *object, const char *beginning) {
  struct bpf_map *map;
  bpf_object__for_each_map(map, object) {
    const char *name = bpf_map__name(map);
    if (!strncmp(name, beginning, strlen(beginning)) && name[strlen(name) - 1] == 'k') return map;
  }
  return NULL;
}

static unsigned long long sum(struct bpf_map *map) {
  int cpus = libbpf_num_possible_cpus();
  unsigned long long key = getpid(), total = 0, *values = calloc(cpus, sizeof *values);
  if (!bpf_map_lookup_elem(bpf_map__fd(map), &key, values))
    for (int cpu = 0; cpu < cpus; cpu++) total += values[cpu];
  free(values);
  return total;
}

int main(int count, char **words) {
  struct bpf_object *object = bpf_object__open_file(words[1], NULL);
  if (!object || bpf_object__load(object)) return 1;
  int loaded = 0, attached = 0;
  struct bpf_program *program;
  bpf_object__for_each_program(program, object) {
    loaded++;
    attached += bpf_program__attach(program) != NULL;
  }
  printf("libbpf %s: %d loaded, %d attached\n", libbpf_version_string() + 1, loaded, attached);
  for (int i = atoi(words[2]); i > 0; i--) getppid();
  for (int i = 3; i < count; i++) {
    struct bpf_map *map = linux_part(object, words[i]);
    printf("%s %llu\n", words[i], map ? sum(map) : 0);
  }
  return 0;
}
