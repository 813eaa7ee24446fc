//! Texts: what Linux says of others' processes, and names that others give.

use super::text;
use crate::harness::{Bound, Target};
use xputrace_render::short_names;
use xputrace_wire::maps::MapsLine;
use xputrace_wire::record::PythonCode;
use xputrace_wire::status;

const BOUND: Bound = Bound { bytes: 4 << 20, per_byte: 256 };

pub(super) const TARGETS: &[Target] = &[
    Target { name: "proc_texts", read: proc_texts, seeds: texts_of_linux, words: WORDS, bound: BOUND },
    Target {
        name: "perf_records",
        read: xputrace_linux::fuzzing::perf_record,
        seeds: perf_records,
        words: &[],
        bound: BOUND,
    },
    Target {
        name: "names",
        read: names,
        seeds: symbols,
        words: NAME_WORDS,
        bound: Bound { bytes: 64 << 20, per_byte: 4096 },
    },
    Target { name: "python_lines", read: python_lines, seeds: line_tables, words: &[], bound: BOUND },
    Target {
        name: "ptxas",
        read: ptxas,
        seeds: compilers_words,
        words: &["Used 1 registers", "ptxas info    : "],
        bound: BOUND,
    },
    Target {
        name: "bpftrace",
        read: bpftrace,
        seeds: programs,
        words: BPFTRACE_WORDS,
        bound: Bound { bytes: 64 << 20, per_byte: 4096 },
    },
];

const WORDS: &[&str] = &[
    " (deleted)",
    "\\012",
    "\\040",
    "\\",
    " - overlay overlay rw,lowerdir=",
    "lowerdir+=/a,",
    "upperdir=",
    ":",
    " r-xp ",
    "\n",
    "NSpid:\t",
    "\tfield:",
    "__data_loc char[] name;",
    "offset:8;",
    "size:4;",
    "signed:1;",
    ") ",
    "0x",
];
const NAME_WORDS: &[&str] = &[
    "_ZN",
    "_Z",
    "St",
    "I",
    "E",
    "S_",
    "T_",
    "NK",
    "_R",
    "<",
    ">",
    "::",
    "(",
    ")",
    ", ",
    "operator",
    "$LT$",
    "h0123456789abcdef",
];
const BPFTRACE_WORDS: &[&str] = &[
    "{",
    "}",
    "@x[",
    "]",
    "tracepoint:",
    "uprobe:",
    "/pid == 1/",
    "printf(\"%s\\n\", ",
    ");",
    "hist(",
    "$a = ",
    "if (",
    "args.",
];

/// Reads a text as any of those in `/proc` and in tracefs.
fn proc_texts(input: &[u8]) {
    for line in input.split(|it| *it == b'\n') {
        if let Some(mapping) = MapsLine::parse(line) {
            assert!(mapping.start <= mapping.end);
            let _ = mapping.file();
        }
    }
    let text = text(input);
    let _ = (status::innermost_id(&text), status::field(&text, "Name"));
    xputrace_linux::fuzzing::text(&text);
    text.lines().for_each(xputrace_inject::fuzzing::blocked);
}

fn texts_of_linux() -> Vec<Vec<u8>> {
    let of_process =
        ["maps", "status", "mountinfo", "stat"].map(|it| std::fs::read(format!("/proc/self/{it}")).unwrap_or_default());
    let texts = [
        "7f01a000-7f01c000 r-xp 00001000 fe:00 1234      /usr/lib/my lib\\012.so (deleted)\n1-2 r-xp 0 00:00 0 [vdso]\n",
        "45 36 0:45 /sub /my\\040app rw,relatime - overlay none rw,lowerdir=/a\\134:b:c/fs,upperdir=/var/s/9/fs,workdir=/w\n",
        "45 36 0:45 / /my\\040app rw - overlay none rw,lowerdir+=/a,lowerdir+=/b,upperdir=/u,workdir=/w\n",
        "name: x\nID: 1\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
         \tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:__data_loc char[] name;\toffset:28;\tsize:4;\tsigned:0;\n\
         \tfield:const char * buf;\toffset:32;\tsize:8;\tsigned:0;\nprint fmt: \"field:x\"\n",
        "232 0x5 0x7ffe00 0x40 0xffffffff 0x0 0x0 0x7ffe10 0x7f42\n",
        "12 (a) b) S 1 12 12 0 -1 4194560 1 0 0\n",
    ];
    of_process.into_iter().chain(texts.map(|it| it.as_bytes().to_vec())).collect()
}

fn perf_records() -> Vec<Vec<u8>> {
    let record = |kind: u32, misc: u16, body: &[u8]| {
        let size = (8 + body.len() + 16) as u16;
        [&kind.to_le_bytes()[..], &misc.to_le_bytes(), &size.to_le_bytes(), body, &[3; 16]].concat()
    };
    let words = |all: &[u32]| all.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>();
    let mapped = |misc, identity: &[u8]| {
        let addresses = [0x7f00u64, 0x2000, 0].map(u64::to_le_bytes).concat();
        record(
            10,
            misc,
            &[&words(&[7, 7])[..], &addresses, identity, &[5; 8], b"/usr/lib/libc.so.6\0\0\0\0\0\0\0"].concat(),
        )
    };
    vec![
        record(3, 1 << 13, &[&words(&[7, 7])[..], b"server\0\0"].concat()),
        record(7, 0, &words(&[9, 7, 9, 7, 1, 0])),
        record(4, 0, &words(&[9, 7, 9, 7, 1, 0])),
        record(2, 0, &words(&[0, 0, 5, 0])),
        mapped(1 << 14, &[&[20, 0, 0, 0][..], &[0xab; 20]].concat()),
        mapped(0, &words(&[8, 1, 1234, 0, 0, 0])),
    ]
}

/// Demangles names, one a line, and shortens them together.
fn names(input: &[u8]) {
    /// Names of a list that are shown.
    const MOST_NAMES: usize = 64;
    let text = text(input);
    let lines = text.lines().take(MOST_NAMES);
    let names: Vec<String> = lines
        .map(|it| {
            let _ = xputrace_symbols::with_parameters(it);
            xputrace_symbols::demangle(it).name
        })
        .collect();
    assert_eq!(short_names(&names, 40).len(), names.len());
    let stood_for = xputrace_model::text::from_bytes(input);
    assert_eq!(xputrace_model::text::to_bytes(&stood_for), input);
}

fn symbols() -> Vec<Vec<u8>> {
    let texts = [
        "_ZNSt6vectorIiSaIiEE9push_backERKi\n_ZN2ns4tmplIiSt6vectorIiSaIiEEEEvT_T0_\n_Z1fPKc\n_ZNKR1C4overEi",
        "_RNvCs1234_7mycrate3foo\n_RINvNtC3std3mem8align_ofjEC3foo\n_ZN4core3fmt9Formatter3pad17h0123456789abcdefE",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, float)\n\
         void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
        "_ZN7cutlass7Kernel2I66cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8EEvNT_6ParamsE",
        "triton_poi_fused_add_mul_0\nmain\noperator+(int)\n(anonymous namespace)::f(std::function<void (int)>&&)",
    ];
    texts.map(|it| it.as_bytes().to_vec()).to_vec()
}

/// Looks up lines of a function's instructions; the first bytes are the first line and an instruction.
fn python_lines(input: &[u8]) {
    let Some(([a, b, c, d], lines)) = input.split_first_chunk() else { return };
    let first_line = u32::from_le_bytes([*a, *b, 0, *d]);
    let code = PythonCode { first_line, file: text(lines).into(), name: "f".into(), lines: lines.into() };
    for offset in [0, u32::from(*c), u32::from_le_bytes([*d, *c, 0, 0]), u32::MAX] {
        let frame = xputrace_symbols::python_frame(Some(&code), offset);
        let _ = xputrace_symbols::is_unknown_python(&frame);
    }
}

fn line_tables() -> Vec<Vec<u8>> {
    vec![
        vec![7, 0, 4, 0, 0x80, 0, 0xd8, 0, 0x81, 0x0f, 0xf0, 0x02, 0x03, 0x00, 0xe8, 0x43, 0xf8, 0x7f],
        [&[1, 0, 9, 0][..], b"/usr/lib/python3.12/site-packages/torch/nn/modules.py", &[0xf1, 0x40, 0x41, 0x01]]
            .concat(),
    ]
}

fn ptxas(input: &[u8]) {
    xputrace_cubins::fuzzing::said(&text(input));
    xputrace_cubins::fuzzing::cached(input);
}

fn compilers_words() -> Vec<Vec<u8>> {
    let said = "ptxas info    : Compiling entry function 'scale' for 'sm_90a'\nptxas info    : Function properties for scale\n    \
                8 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 28 registers, used 1 barriers\n";
    vec![said.into()]
}

/// Translates a program that somebody has found somewhere.
fn bpftrace(input: &[u8]) {
    let _ = xputrace_bpftrace::translate(&text(input));
}

fn programs() -> Vec<Vec<u8>> {
    super::files_in("tests/compile/bpftrace", ".bt")
}
