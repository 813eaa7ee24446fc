//! Mangled symbols → the two names that scripts see, by the symbol's language: `itanium_names` reads those of C++, and
//! `rustc_demangle` those of Rust.

use itanium_names::{CppSymbol, LONGEST_NAME, LONGEST_SYMBOL};
use std::fmt;

/// A symbol's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demangled {
    /// With template arguments, without parameters or return type: `scale<float>`.
    pub name: String,
    /// Without template arguments: `scale`.
    pub short_name: String,
}

/// Demangles a C++ or Rust symbol; any other symbol is returned as both names.
pub fn demangle(symbol: &str) -> Demangled {
    let bare = without_version(symbol);
    rust(bare).or_else(|| cpp(bare)).unwrap_or_else(|| Demangled { name: symbol.into(), short_name: symbol.into() })
}

/// Returns the name of a C++ function with the types of its parameters: `over(int)`; `None` for other symbols.
pub fn with_parameters(symbol: &str) -> Option<String> {
    CppSymbol::parse(without_version(symbol))?.with_parameters()
}

/// Strips the linker's version (`name@@GLIBC_2.2.5`).
fn without_version(symbol: &str) -> &str {
    match symbol.split_once('@') {
        Some((name, _)) if !name.is_empty() => name,
        _ => symbol,
    }
}

fn rust(symbol: &str) -> Option<Demangled> {
    let looks_like_it = symbol.starts_with("_R") || symbol.starts_with("_ZN");
    if symbol.len() > LONGEST_SYMBOL || !looks_like_it {
        return None;
    }
    let demangled = rustc_demangle::try_demangle(symbol).ok()?;
    let mut name = Bounded::default();
    // `{:#}` omits the hash.
    fmt::write(&mut name, format_args!("{demangled:#}")).ok()?;
    let short_name = without_generics(&name.0);
    (!short_name.is_empty()).then_some(Demangled { name: name.0, short_name })
}

fn cpp(symbol: &str) -> Option<Demangled> {
    let names = CppSymbol::parse(symbol)?.names()?;
    Some(Demangled { name: names.name, short_name: names.short_name })
}

/// A string with a maximum length.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > LONGEST_NAME {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Strips the `::<…>` of a Rust path; keeps a leading `<T as Trait>`.
fn without_generics(path: &str) -> String {
    let mut short = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find("::<") {
        let Some(length) = balanced_length(&rest[at + 2..]) else { break };
        short.push_str(&rest[..at]);
        rest = &rest[at + 2 + length..];
    }
    short + rest
}

/// Returns the length of the `<…>` at the start of the text.
fn balanced_length(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if previous != '-' => depth = depth.checked_sub(1)?,
            _ => {}
        }
        if depth == 0 {
            return Some(at + c.len_utf8());
        }
        previous = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn both(symbol: &str) -> (String, String) {
        let it = demangle(symbol);
        (it.name, it.short_name)
    }

    /// Symbol, name, short name.
    const GOLDENS: &[(&str, &str, &str)] = &[
        ("_Z5scaleIfEvPT_S0_", "scale<float>", "scale"),
        ("_Z9vectorAddPKfS0_Pfi", "vectorAdd", "vectorAdd"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_",
            "at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, (unsigned long)3> >",
            "at::native::vectorized_elementwise_kernel",
        ),
        (
            "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_7MeanOpsIfffEEjfLi4EEEEEvT1_",
            "at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float>, unsigned int, float, 4> >",
            "at::native::reduce_kernel",
        ),
        (
            "_ZN7cutlass6KernelI52cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4EEvNT_6ParamsE",
            "cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align4>",
            "cutlass::Kernel",
        ),
        (
            "_ZN7cutlass4gemm6kernel4GemmIN3foo3barELb1EEclEi",
            "cutlass::gemm::kernel::Gemm<foo::bar, true>::operator()",
            "cutlass::gemm::kernel::Gemm::operator()",
        ),
        ("_ZN12_GLOBAL__N_16kernelILb0EEEvv", "(anonymous namespace)::kernel<false>", "(anonymous namespace)::kernel"),
        ("_ZN3foolsIiEEvT_", "foo::operator<< <int>", "foo::operator<<"),
        ("_ZN1AptEv", "A::operator->", "A::operator->"),
        ("_ZN1AltERKS_", "A::operator<", "A::operator<"),
        ("sgemm_32x32x32_NN", "sgemm_32x32x32_NN", "sgemm_32x32x32_NN"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("cudaLaunchKernel", "cudaLaunchKernel", "cudaLaunchKernel"),
        ("", "", ""),
        ("_Z", "_Z", "_Z"),
        ("@", "@", "@"),
        ("_ZNE@", "_ZNE@", "_ZNE@"),
        ("_ZN3std2io5stdio6_print17h3c6f7b1d2a9e8f40E", "std::io::stdio::_print", "std::io::stdio::_print"),
        (
            "_ZNSt6vectorIiSaIiEE9push_backEOi",
            "std::vector<int, std::allocator<int> >::push_back",
            "std::vector::push_back",
        ),
        (
            "_ZNSt6vectorIiSaIiEE9push_backEOi@@GLIBCXX_3.4",
            "std::vector<int, std::allocator<int> >::push_back",
            "std::vector::push_back",
        ),
        ("_RINvCs1234_7mycrate3fooNtCs1234_7mycrate3BarE", "mycrate::foo::<mycrate::Bar>", "mycrate::foo"),
        ("_Z2dtIiEDTplfp_Li1EET_", "dt<int>", "dt"),
        ("_Z2fpIXadL_Z6targetiEEEvv", "fp<&target(int)>", "fp"),
        ("_Z2sfILb1EENSt9enable_ifIXT_EvE4typeEv", "sf<true>", "sf"),
        ("_Z3arrIiLi4EET_RAT0__S0_", "arr<int, 4>", "arr"),
        ("_Z3invIPFviSt6vectorIiSaIiEEEEvT_", "inv<void (*)(int, std::vector<int, std::allocator<int> >)>", "inv"),
        ("_Z3varIfE", "var<float>", "var"),
        ("_Z4packIJifPKcEEvDpT_", "pack<int, float, char const*>", "pack"),
        (
            "_Z5enumkILN7cutlass2OpE1ELxn5ELc120EEvNS0_3TagIXT_EEE",
            "enumk<(cutlass::Op)1, (long long)-5, (char)120>",
            "enumk",
        ),
        (
            "_ZN12_GLOBAL__N_16launchIZ1gvEUliE_EEvT_",
            "(anonymous namespace)::launch<g()::{lambda(int)#1}>",
            "(anonymous namespace)::launch",
        ),
        ("_ZN1SC1IfEET_", "S::S<float>", "S::S"),
        ("_ZN1SD1Ev", "S::~S", "S::~S"),
        ("_ZN1ScvPT_IiEEv", "S::operator int*<int>", "S::operator int*"),
        ("_ZN1SltIiEEbT_", "S::operator< <int>", "S::operator<"),
        ("_ZN1SrsIS_EEbT_", "S::operator>><S>", "S::operator>>"),
        (
            "_ZN3cub25CUB_200200_700_750_800_NS18DeviceReduceKernelIiPfSt4plusIfEEEvT0_T1_",
            "cub::CUB_200200_700_750_800_NS::DeviceReduceKernel<int, float*, std::plus<float> >",
            "cub::CUB_200200_700_750_800_NS::DeviceReduceKernel",
        ),
        (
            "_ZN7cutlass7Kernel2INS_4gemm6kernel13GemmUniversalINS1_9GemmShapeILi128ELi64ELi32EEELb1EEEEEvNT_6ParamsE",
            "cutlass::Kernel2<cutlass::gemm::kernel::GemmUniversal<cutlass::gemm::GemmShape<128, 64, 32>, true> >",
            "cutlass::Kernel2",
        ),
        ("_ZZ1gvENKUliE_clEi", "g()::{lambda(int)#1}::operator()", "g()::{lambda(int)#1}::operator()"),
        ("_Z5scaleIfEvPT_S0_.cold", "scale<float>", "scale"),
        (
            "_Z16cudaLaunchKernelIcE9cudaErrorPKT_4dim3S4_PPvmP11CUstream_st",
            "cudaLaunchKernel<char>",
            "cudaLaunchKernel",
        ),
        ("helper.constprop.0", "helper.constprop.0", "helper.constprop.0"),
    ];

    #[test]
    fn names_of_kernels_and_functions() {
        let differing: Vec<_> = GOLDENS
            .iter()
            .filter_map(|(symbol, name, short)| {
                let got = both(symbol);
                (got != (name.to_string(), short.to_string())).then_some((symbol, got))
            })
            .collect();
        assert!(differing.is_empty(), "{differing:#?}");
    }

    #[test]
    fn lambdas_keep_their_parameters_inside_the_name() {
        let (name, short) = both(
            "_ZN2at6native18elementwise_kernelILi128ELi2EZNS0_15gpu_kernel_implINS0_13AUnaryFunctorIfffNS0_10MulFunctorIfEEEEEEvRNS_18TensorIteratorBaseERKT_EUliE_EEviT1_",
        );
        assert!(name.starts_with("at::native::elementwise_kernel<128, 2, "), "{name}");
        assert!(name.contains("gpu_kernel_impl<"), "{name}");
        assert_eq!(short, "at::native::elementwise_kernel");
    }

    #[test]
    fn long_names_are_whole_and_hostile_ones_stay_as_they_are() {
        let long = format!("_Z1fI{}Evv", "3fooIiE".repeat(300));
        assert_eq!(both(&long).1, "f");
        assert!(both(&long).0.len() > 2000);
        let deep = format!("_Z1fI{}i{}Evv", "1AI".repeat(3000), "E".repeat(3000));
        assert_eq!(both(&deep).0, deep);
        // Each substitution doubles the name.
        let mut growing = String::from("_Z1fI1AIiiE");
        for n in 0..30 {
            let it = char::from_digit(n, 36).unwrap().to_ascii_uppercase();
            growing += &format!("1AIS{it}_S{it}_E");
        }
        growing += "Evv";
        assert!(both(&growing).0.len() <= LONGEST_NAME);
    }

    proptest! {
        #[test]
        fn any_text_is_accepted(text in any::<String>()) {
            demangle(&text);
        }

        #[test]
        fn any_mangled_text_is_accepted(text in "_(Z|ZN|R|ZNK|RNv|RIN)[A-Za-z0-9_.@]{0,80}") {
            prop_assert!(!demangle(&text).name.is_empty());
        }

        #[test]
        fn damaged_symbols_are_accepted(which in 0usize..20, at in 0usize..100, to in "[A-Z0-9_a-z]") {
            let mut symbol = GOLDENS[which % GOLDENS.len()].0.to_string();
            if at < symbol.len() {
                symbol.replace_range(at..at + 1, &to);
            }
            demangle(&symbol);
        }
    }
}
