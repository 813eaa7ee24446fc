//! Numbers of helper functions.
//!
//! Source: `include/uapi/linux/bpf.h`, except [`NAME_TEXT`], [`MAP_MODIFY`] and [`NAME_MATCHES`],
//! which only the tracer's engine has, [`RAISE`], and those from [`PUTS`] to [`GET_LANE_ID`], which only programs
//! in kernels of a GPU have.

pub const MAP_LOOKUP_ELEM: i32 = 1;
pub const MAP_UPDATE_ELEM: i32 = 2;
pub const MAP_DELETE_ELEM: i32 = 3;
pub const KTIME_GET_NS: i32 = 5;
pub const TRACE_PRINTK: i32 = 6;
pub const GET_SMP_PROCESSOR_ID: i32 = 8;
pub const GET_CURRENT_PID_TGID: i32 = 14;
pub const GET_CURRENT_UID_GID: i32 = 15;
pub const GET_CURRENT_COMM: i32 = 16;
pub const PERF_EVENT_OUTPUT: i32 = 25;
pub const GET_STACKID: i32 = 27;
pub const GET_CURRENT_TASK: i32 = 35;
pub const GET_CURRENT_CGROUP_ID: i32 = 80;
pub const PROBE_READ_USER: i32 = 112;
pub const PROBE_READ_KERNEL: i32 = 113;
pub const PROBE_READ_USER_STR: i32 = 114;
pub const PROBE_READ_KERNEL_STR: i32 = 115;
pub const GET_NS_CURRENT_PID_TGID: i32 = 120;
pub const RINGBUF_OUTPUT: i32 = 130;
pub const RINGBUF_RESERVE: i32 = 131;
pub const RINGBUF_SUBMIT: i32 = 132;
pub const RINGBUF_DISCARD: i32 = 133;
pub const GET_FUNC_IP: i32 = 173;
pub const GET_ATTACH_COOKIE: i32 = 174;
pub const MAP_LOOKUP_PERCPU_ELEM: i32 = 195;

// Helpers of programs in CUDA kernels, numbered as in bpftime (`attach/nv_attach_impl/trampoline/default_trampoline.cu`).
// Those that return three numbers write 64-bit words to where R1 to R3 point.

/// `void puts(const char *text)`.
pub const PUTS: i32 = 501;
/// `u64 get_globaltimer(void)`: nanoseconds of the device's clock.
pub const GET_GLOBALTIMER: i32 = 502;
pub const GET_BLOCK_IDX: i32 = 503;
pub const GET_BLOCK_DIM: i32 = 504;
pub const GET_THREAD_IDX: i32 = 505;
/// `void membar(void)`: orders memory accesses as seen by the whole system.
pub const MEMBAR: i32 = 506;
/// `void exit_thread(void)`: ends the kernel's thread.
pub const EXIT_THREAD: i32 = 507;
pub const GET_GRID_DIM: i32 = 508;
pub const GET_SM_ID: i32 = 509;
pub const GET_WARP_ID: i32 = 510;
pub const GET_LANE_ID: i32 = 511;

/// `u64 name_text(u64 string_id, void *dst, u32 size)`: copies at most `size - 1` bytes of a string
/// in the run's string table and pads with NULs; returns the string's full length. Only in the
/// tracer's engine; programs that call it are not loaded into Linux.
pub const NAME_TEXT: i32 = 9001;

/// `i64 map_modify(map, const void *key, u64 operand, u64 op)`: changes the first 8 bytes of an
/// element like [`crate::insn::atomic`]'s `ADD OR AND XOR`, from 0 if there is no element. Returns
/// 0, or a negative errno if the map is full. Exact even if the map lives in Linux and programs
/// there change the same element. Only in the tracer's engine.
pub const MAP_MODIFY: i32 = 9002;

/// `u64 name_matches(u64 string_id, u64 wanted_id, u64 place)`: returns 1 if one string of the
/// run's string table contains another at [`MATCH_START`], at [`MATCH_END`] or anywhere, else 0.
/// Only in the tracer's engine.
pub const NAME_MATCHES: i32 = 9003;

/// `void raise(u64 *value, u64 number)`: replaces a word of a map by the number, if that is larger without a sign, in one
/// step. Only device code has it, where thousands of threads change one word and a compare-and-swap would fail often; the
/// tracer's engine runs it in its place.
pub const RAISE: i32 = 9004;

/// `place` of `name_matches`.
pub const MATCH_ANYWHERE: i64 = 0;
pub const MATCH_START: i64 = 1;
pub const MATCH_END: i64 = 2;

/// `flags` of `map_update_elem`.
pub const UPDATE_ANY: i32 = 0;
pub const UPDATE_NOEXIST: i32 = 1;
pub const UPDATE_EXIST: i32 = 2;

/// `flags` of `get_stackid`: take the user stack.
pub const STACK_USER: i32 = 1 << 8;

/// Returns a helper's name without its `bpf_`; `None` for numbers unknown to this module.
pub fn name(helper: i32) -> Option<&'static str> {
    Some(match helper {
        MAP_LOOKUP_ELEM => "map_lookup_elem",
        MAP_UPDATE_ELEM => "map_update_elem",
        MAP_DELETE_ELEM => "map_delete_elem",
        KTIME_GET_NS => "ktime_get_ns",
        TRACE_PRINTK => "trace_printk",
        GET_SMP_PROCESSOR_ID => "get_smp_processor_id",
        GET_CURRENT_PID_TGID => "get_current_pid_tgid",
        GET_CURRENT_UID_GID => "get_current_uid_gid",
        GET_CURRENT_COMM => "get_current_comm",
        PERF_EVENT_OUTPUT => "perf_event_output",
        GET_STACKID => "get_stackid",
        GET_CURRENT_TASK => "get_current_task",
        GET_CURRENT_CGROUP_ID => "get_current_cgroup_id",
        PROBE_READ_USER => "probe_read_user",
        PROBE_READ_KERNEL => "probe_read_kernel",
        PROBE_READ_USER_STR => "probe_read_user_str",
        PROBE_READ_KERNEL_STR => "probe_read_kernel_str",
        GET_NS_CURRENT_PID_TGID => "get_ns_current_pid_tgid",
        RINGBUF_OUTPUT => "ringbuf_output",
        RINGBUF_RESERVE => "ringbuf_reserve",
        RINGBUF_SUBMIT => "ringbuf_submit",
        RINGBUF_DISCARD => "ringbuf_discard",
        GET_FUNC_IP => "get_func_ip",
        GET_ATTACH_COOKIE => "get_attach_cookie",
        MAP_LOOKUP_PERCPU_ELEM => "map_lookup_percpu_elem",
        PUTS => "puts",
        GET_GLOBALTIMER => "get_globaltimer",
        GET_BLOCK_IDX => "get_block_idx",
        GET_BLOCK_DIM => "get_block_dim",
        GET_THREAD_IDX => "get_thread_idx",
        MEMBAR => "membar",
        EXIT_THREAD => "exit_thread",
        GET_GRID_DIM => "get_grid_dim",
        GET_SM_ID => "get_sm_id",
        GET_WARP_ID => "get_warp_id",
        GET_LANE_ID => "get_lane_id",
        NAME_TEXT => "name_text",
        MAP_MODIFY => "map_modify",
        NAME_MATCHES => "name_matches",
        RAISE => "raise",
        _ => return None,
    })
}
