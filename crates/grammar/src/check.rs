//! Whether a form can be held to at all, asked before anything is reserved for its request.

use crate::{Grammars, NoForm, STACK_BYTES};
use wire::Form;

/// Compiles a form on a thread with the stack that this takes.
///
/// # Errors
/// See [`NoForm`].
pub fn compiles(grammars: &Grammars, form: &Form) -> Result<(), NoForm> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
        let no_thread = |_| NoForm::whole("there is no thread to compile it on; try again");
        let check = move || {
            let mut walk = grammars.begin(form)?;
            let begins = walk.mask().map(drop);
            begins.map_err(|stuck| NoForm::whole(stuck.to_string()))
        };
        let thread = thread.spawn_scoped(scope, check).map_err(no_thread)?;
        let done = thread.join();
        done.unwrap_or_else(|_| Err(NoForm::whole("it cannot be compiled")))
    })
}
