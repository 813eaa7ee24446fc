//! Modules that CUPTI reports: the driver loads the program's code when it is first needed, which may be in a call of ours. It
//! reports our own, too.

use crate::cupti::functions::ModuleData;
use crate::cupti::run::Run;
use xputrace_wire::device::BLOCK_VARIABLE;

impl Run {
    /// Whether a module that was loaded is a twin's: it has the variable that each twin has.
    ///
    /// # Safety
    /// `module` is CUPTI's of a module that was just loaded.
    pub(in super::super) unsafe fn is_own_module(&self, module: &ModuleData) -> bool {
        let Some(twins) = self.backend.twins() else { return false };
        let name = BLOCK_VARIABLE.as_bytes();
        // SAFETY: the caller's promise: CUPTI has the module's code there.
        let is_own = !module.cubin.is_null()
            && unsafe {
                !libc::memmem(module.cubin.cast(), module.cubin_size, name.as_ptr().cast(), name.len()).is_null()
            };
        if is_own {
            twins.modules.with(|it| it.push(module.id));
        }
        is_own
    }

    /// Whether a module that is about to be unloaded is a twin's.
    pub(in super::super) fn was_own_module(&self, module: &ModuleData) -> bool {
        let Some(twins) = self.backend.twins() else { return false };
        twins.modules.with(|all| {
            let at = all.iter().position(|it| *it == module.id);
            at.map(|it| all.swap_remove(it)).is_some()
        })
    }
}
