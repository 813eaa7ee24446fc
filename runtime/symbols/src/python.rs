//! Python's frames: their names and lines, and how they are shown among native ones.

use xputrace_model::stack::{Frame, Frames, PythonFrames};
use xputrace_wire::record::PythonCode;

/// Returns the frame of a function at an instruction (bytes from its first), as
/// `name (file:line)`; `code` is `None` if the function was lost.
pub fn python_frame(code: Option<&PythonCode>, offset: u32) -> Frame {
    let function = match code {
        None => UNKNOWN_FUNCTION.into(),
        Some(it) => match line(it, offset) {
            Some(line) => format!("{} ({}:{line})", it.name, short_path(&it.file)),
            None => format!("{} ({})", it.name, short_path(&it.file)),
        },
    };
    Frame { function, module: Frame::PYTHON.into(), offset: 0 }
}

const UNKNOWN_FUNCTION: &str = "(unknown Python function)";

/// Whether it is a frame of a function that was lost, or has not been told of yet.
pub fn is_unknown_python(frame: &Frame) -> bool {
    frame.function == UNKNOWN_FUNCTION
}

/// Returns a path from where packages are installed, and others as they are.
fn short_path(path: &str) -> &str {
    let installed = ["/site-packages/", "/dist-packages/"];
    if let Some(rest) = installed.iter().find_map(|it| path.rsplit_once(it)) {
        return rest.1;
    }
    // The standard library: `/usr/lib/python3.12/threading.py`.
    let library = ["/lib/python3.", "/lib64/python3."].iter().find_map(|it| path.rsplit_once(it));
    let rest = library.and_then(|(_, rest)| rest.split_once('/'));
    rest.filter(|(minor, _)| minor.bytes().all(|it| it.is_ascii_digit())).map_or(path, |(_, rest)| rest)
}

/// Returns the line of an instruction, by CPython's table (`Objects/locations.md` up to 3.12,
/// `InternalDocs/code_objects.md` since). `None` for instructions without one.
fn line(code: &PythonCode, offset: u32) -> Option<u32> {
    /// Instructions are counted in units of two bytes.
    const UNIT: u32 = 2;
    let mut bytes = Bytes(&code.lines);
    let (mut line, mut end) = (i64::from(code.first_line), 0u32);
    loop {
        let first = bytes.next()?;
        end = end.saturating_add((u32::from(first & 7) + 1) * UNIT);
        let kind = first >> 3 & 15;
        let (delta, rest) = match kind {
            15 => (0, 0),
            14 => (bytes.signed()?, 3),
            13 => (bytes.signed()?, 0),
            10..=12 => (i64::from(kind) - 10, 0),
            _ => (0, 0),
        };
        match kind {
            10..=12 => bytes.skip(2)?,
            0..=9 => bytes.skip(1)?,
            _ => (0..rest).try_for_each(|_| bytes.unsigned().map(drop))?,
        }
        line = line.checked_add(delta)?;
        if offset < end {
            return u32::try_from(line).ok().filter(|_| kind != 15);
        }
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.0 = self.0.get(n..)?;
        Some(())
    }

    /// Six bits a byte, the lowest first; another byte follows where 0x40 is set.
    fn unsigned(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0);
        loop {
            let byte = self.next()?;
            value |= u64::from(byte & 0x3f).checked_shl(shift)?;
            shift += 6;
            if byte & 0x40 == 0 {
                return Some(value);
            }
        }
    }

    /// The lowest bit is the sign.
    fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        let size = i64::try_from(value >> 1).ok()?;
        Some(if value & 1 == 0 { size } else { -size })
    }
}

/// Returns the frames as they are to be shown.
///
/// Merged, the interpreter's own frames are left out, but for the outermost one: the files that they
/// are in are known by the functions that run Python's frames, each of which stands behind those.
pub fn shown(frames: &Frames, how: PythonFrames) -> Frames {
    if !frames.iter().any(Frame::is_python) {
        return match how {
            PythonFrames::Only => Frames::from([]),
            _ => frames.clone(),
        };
    }
    match how {
        PythonFrames::Only => frames.iter().filter(|it| it.is_python()).cloned().collect(),
        PythonFrames::Off => frames.iter().filter(|it| !it.is_python()).cloned().collect(),
        PythonFrames::Merge => {
            let runs = frames.windows(2).filter(|it| it[0].is_python() && !it[1].is_python());
            let interpreters: Vec<&str> = runs.map(|it| it[1].module.as_str()).filter(|it| !it.is_empty()).collect();
            let last = frames.len() - 1;
            let is_own = |it: &Frame| interpreters.contains(&it.module.as_str()) && is_of_interpreter(it);
            let is_shown = |(at, it): &(usize, &Frame)| *at == last || !is_own(it);
            frames.iter().enumerate().filter(is_shown).map(|(_, it)| it.clone()).collect()
        }
    }
}

/// Whether a frame in the interpreter's file is the interpreter's: a program may have one built in.
fn is_of_interpreter(frame: &Frame) -> bool {
    ["python", "libpython"].iter().any(|it| frame.module.starts_with(it))
        || ["_Py", "Py"].iter().any(|it| frame.function.starts_with(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(first_line: u32, lines: &[u8]) -> PythonCode {
        PythonCode { first_line, file: "/home/me/train.py".into(), name: "Net.forward".into(), lines: lines.into() }
    }

    #[test]
    fn every_kind_of_entry_leads_to_its_line() {
        // Two units each: short; one line with a delta of 1; no columns, +100; long, -50; none; short.
        let table = [
            0x80 | 1,
            0,
            0x80 | 11 << 3 | 1,
            0,
            0,
            0x80 | 13 << 3 | 1,
            0x40 | 200 & 0x3f,
            (200 >> 6) as u8,
            0x80 | 14 << 3 | 1,
            0x40 | 101 & 0x3f,
            (101 >> 6) as u8,
            0,
            1,
            1,
            0x80 | 15 << 3 | 1,
            0x80 | 9 << 3 | 1,
            0,
        ];
        let it = code(10, &table);
        let lines: Vec<_> = (0..7).map(|n| line(&it, n * 4)).collect();
        assert_eq!(lines, [Some(10), Some(11), Some(111), Some(61), None, Some(61), None]);
        assert_eq!(line(&it, 3), Some(10), "in the middle of an entry");
    }

    #[test]
    fn damaged_tables_have_no_lines() {
        for table in [&[][..], &[0x80 | 14 << 3], &[0x80 | 13 << 3, 0x7f, 0x7f], &[0x80 | 13 << 3; 40], &[0xff; 300]] {
            assert_eq!(line(&code(1, table), 1 << 20), None);
        }
    }

    #[test]
    fn paths_begin_where_packages_do() {
        let short = [
            ("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", "torch/nn/modules/module.py"),
            ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
            ("/usr/lib/python3.12/threading.py", "threading.py"),
            ("/usr/lib64/python3.12/asyncio/runners.py", "asyncio/runners.py"),
            ("/home/me/lib/python3.x/a.py", "/home/me/lib/python3.x/a.py"),
            ("train.py", "train.py"),
            ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ];
        for (path, expected) in short {
            assert_eq!(short_path(path), expected);
        }
    }

    #[test]
    fn a_frame_without_a_line_has_its_file() {
        assert_eq!(python_frame(Some(&code(7, &[0x80, 0])), 0).function, "Net.forward (/home/me/train.py:7)");
        assert_eq!(python_frame(Some(&code(7, &[])), 0).function, "Net.forward (/home/me/train.py)");
        assert_eq!(python_frame(None, 0).function, "(unknown Python function)");
    }

    #[test]
    fn the_interpreters_frames_are_left_out_among_pythons() {
        let native =
            |function: &str, module: &str| Frame { function: function.into(), module: module.into(), offset: 0 };
        let python = |function: &str| native(function, Frame::PYTHON);
        let frames: Frames = [
            native("cudaLaunchKernel", "libcudart.so"),
            native("launch", "ext.so"),
            native("vectorcall", "python3"),
            python("inner"),
            python("outer"),
            native("_PyEval_EvalFrameDefault", "python3"),
            native("call_back", "ext.so"),
            python("<module>"),
            native("_PyEval_EvalFrameDefault", "python3"),
            native("Py_RunMain", "python3"),
            native("__libc_start_main", "libc.so.6"),
            native("_start", "python3"),
        ]
        .into();
        let names = |how| shown(&frames, how).iter().map(|it| it.function.clone()).collect::<Vec<_>>();
        let merged =
            ["cudaLaunchKernel", "launch", "inner", "outer", "call_back", "<module>", "__libc_start_main", "_start"];
        assert_eq!(names(PythonFrames::Merge), merged);
        assert_eq!(names(PythonFrames::Only), ["inner", "outer", "<module>"]);
        assert_eq!(names(PythonFrames::Off).len(), frames.len() - 3);
        // Built into the program, it is told by its functions' names.
        let built_in: Frames = frames
            .iter()
            .map(|it| native(&it.function, if it.module == "python3" { "game" } else { &it.module }))
            .collect();
        let with_vectorcall = [&merged[..2], &["vectorcall"], &merged[2..]].concat();
        let built_in: Vec<_> = shown(&built_in, PythonFrames::Merge).iter().map(|it| it.function.clone()).collect();
        assert_eq!(built_in, with_vectorcall);
        let without: Frames = [native("a", "b")].into();
        assert_eq!(
            (shown(&without, PythonFrames::Merge), shown(&without, PythonFrames::Only).len()),
            (without.clone(), 0)
        );
    }
}
