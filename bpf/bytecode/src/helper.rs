//! Numbers of helper functions.
//!
//! Source: `include/uapi/linux/bpf.h`, except [`NAME_TEXT`], [`MAP_MODIFY`] and [`NAME_MATCHES`],
//! which only the tracer's engine has, [`RAISE`], and those from [`PUTS`] to [`GET_LANE_ID`], which only programs
//! in kernels of a GPU have.

/// Lists the helpers once, with their names.
macro_rules! helpers {
    ($($(#[$doc:meta])* $NAME:ident = $number:literal $name:literal;)*) => {
        $($(#[$doc])* pub const $NAME: i32 = $number;)*

        /// Returns a helper's name without its `bpf_`; `None` for numbers unknown to this module.
        pub fn name(helper: i32) -> Option<&'static str> {
            match helper {
                $($NAME => Some($name),)*
                _ => None,
            }
        }
    };
}

helpers! {
    MAP_LOOKUP_ELEM = 1 "map_lookup_elem";
    MAP_UPDATE_ELEM = 2 "map_update_elem";
    MAP_DELETE_ELEM = 3 "map_delete_elem";
    KTIME_GET_NS = 5 "ktime_get_ns";
    TRACE_PRINTK = 6 "trace_printk";
    GET_SMP_PROCESSOR_ID = 8 "get_smp_processor_id";
    GET_CURRENT_PID_TGID = 14 "get_current_pid_tgid";
    GET_CURRENT_UID_GID = 15 "get_current_uid_gid";
    GET_CURRENT_COMM = 16 "get_current_comm";
    PERF_EVENT_OUTPUT = 25 "perf_event_output";
    GET_STACKID = 27 "get_stackid";
    GET_CURRENT_TASK = 35 "get_current_task";
    GET_CURRENT_CGROUP_ID = 80 "get_current_cgroup_id";
    PROBE_READ_USER = 112 "probe_read_user";
    PROBE_READ_KERNEL = 113 "probe_read_kernel";
    PROBE_READ_USER_STR = 114 "probe_read_user_str";
    PROBE_READ_KERNEL_STR = 115 "probe_read_kernel_str";
    GET_NS_CURRENT_PID_TGID = 120 "get_ns_current_pid_tgid";
    RINGBUF_OUTPUT = 130 "ringbuf_output";
    RINGBUF_RESERVE = 131 "ringbuf_reserve";
    RINGBUF_SUBMIT = 132 "ringbuf_submit";
    RINGBUF_DISCARD = 133 "ringbuf_discard";
    GET_FUNC_IP = 173 "get_func_ip";
    GET_ATTACH_COOKIE = 174 "get_attach_cookie";
    MAP_LOOKUP_PERCPU_ELEM = 195 "map_lookup_percpu_elem";

    // Helpers of programs in CUDA kernels, numbered as in bpftime (`attach/nv_attach_impl/trampoline/default_trampoline.cu`).
    // Those that return three numbers write 64-bit words to where R1 to R3 point.

    /// `void puts(const char *text)`.
    PUTS = 501 "puts";
    /// `u64 get_globaltimer(void)`: nanoseconds of the device's clock.
    GET_GLOBALTIMER = 502 "get_globaltimer";
    GET_BLOCK_IDX = 503 "get_block_idx";
    GET_BLOCK_DIM = 504 "get_block_dim";
    GET_THREAD_IDX = 505 "get_thread_idx";
    /// `void membar(void)`: orders memory accesses as seen by the whole system.
    MEMBAR = 506 "membar";
    /// `void exit_thread(void)`: ends the kernel's thread.
    EXIT_THREAD = 507 "exit_thread";
    GET_GRID_DIM = 508 "get_grid_dim";
    GET_SM_ID = 509 "get_sm_id";
    GET_WARP_ID = 510 "get_warp_id";
    GET_LANE_ID = 511 "get_lane_id";

    /// `u64 name_text(u64 string_id, void *dst, u32 size)`: copies at most `size - 1` bytes of a string
    /// in the run's string table and pads with NULs; returns the string's full length. Only in the
    /// tracer's engine; programs that call it are not loaded into Linux.
    NAME_TEXT = 9001 "name_text";

    /// `i64 map_modify(map, const void *key, u64 operand, u64 op)`: changes the first 8 bytes of an
    /// element like [`crate::insn::atomic`]'s `ADD OR AND XOR`, from 0 if there is no element. Returns
    /// 0, or a negative errno if the map is full. Exact even if the map lives in Linux and programs
    /// there change the same element. Only in the tracer's engine.
    MAP_MODIFY = 9002 "map_modify";

    /// `u64 name_matches(u64 string_id, u64 wanted_id, u64 place)`: returns 1 if one string of the
    /// run's string table contains another at [`MATCH_START`], at [`MATCH_END`] or anywhere, else 0.
    /// Only in the tracer's engine.
    NAME_MATCHES = 9003 "name_matches";

    /// `void raise(u64 *value, u64 number)`: replaces a word of a map by the number, if that is larger without a sign, in one
    /// step. Only device code has it, where thousands of threads change one word and a compare-and-swap would fail often; the
    /// tracer's engine runs it in its place.
    RAISE = 9004 "raise";
}

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
