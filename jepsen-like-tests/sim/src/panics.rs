//! Panics of simulated tasks: a task's owner may swallow one, the simulation never does.

use std::cell::RefCell;
use std::sync::Once;

thread_local! {
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Collects the panics of this thread while it lives.
pub(crate) struct Watch(());

impl Watch {
    pub(crate) fn begin() -> Watch {
        HOOK.call_once(|| {
            let previous = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                let taken = SEEN.with(|seen| match &mut *seen.borrow_mut() {
                    Some(seen) => {
                        seen.push(info.to_string().replace('\n', " "));
                        true
                    }
                    None => false,
                });
                if !taken {
                    previous(info);
                }
            }));
        });
        SEEN.with(|seen| *seen.borrow_mut() = Some(Vec::new()));
        Watch(())
    }

    /// What was collected.
    pub(crate) fn end(self) -> Vec<String> {
        SEEN.with(|seen| seen.borrow_mut().take()).unwrap_or_default()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        SEEN.with(|seen| *seen.borrow_mut() = None);
    }
}
