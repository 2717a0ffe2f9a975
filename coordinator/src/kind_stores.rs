//! Stores that one kind fills by watches while its Migration is active, in types that only the kind knows.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store of one kind. Clones share the content.
pub(crate) trait KindStore: Any + Send + Sync {
    /// Stops the watches and drops their content: no Migration needs them any more, or another process leads.
    fn stop(&self);
}

/// The stores of every kind that has used any. Clones share them.
#[derive(Clone, Default)]
pub struct KindStores(Arc<Mutex<HashMap<TypeId, Box<dyn KindStore>>>>);

impl KindStores {
    /// The store of this type. Empty on the first call.
    pub(crate) fn of<S: KindStore + Clone + Default>(&self) -> S {
        let mut stores = self.stores();
        let store = stores
            .entry(TypeId::of::<S>())
            .or_insert_with(|| Box::new(S::default()));
        let store: &dyn Any = store.as_ref();
        match store.downcast_ref::<S>() {
            Some(store) => store.clone(),
            None => unreachable!("the key is the type of the value"),
        }
    }

    /// Uses this store, which the caller has filled.
    pub(crate) fn put<S: KindStore>(&self, store: S) {
        self.stores().insert(TypeId::of::<S>(), Box::new(store));
    }

    /// Stops every store, except the one of this type.
    pub(crate) fn stop_except(&self, needed: Option<TypeId>) {
        for (store_type, store) in self.stores().iter() {
            if Some(*store_type) != needed {
                store.stop();
            }
        }
    }

    fn stores(&self) -> MutexGuard<'_, HashMap<TypeId, Box<dyn KindStore>>> {
        // Every change is complete before a panic is possible.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Clone, Default)]
    struct First(Arc<AtomicU32>);

    #[derive(Clone, Default)]
    struct Second(Arc<AtomicU32>);

    impl KindStore for First {
        fn stop(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl KindStore for Second {
        fn stop(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn stores_of_other_kinds_stop() {
        let stores = KindStores::default();
        let stops = || {
            let (first, second): (First, Second) = (stores.of(), stores.of());
            (first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed))
        };
        assert_eq!(stops(), (0, 0));
        stores.stop_except(Some(TypeId::of::<First>()));
        assert_eq!(stops(), (0, 1));
        stores.stop_except(None);
        assert_eq!(stops(), (1, 2));
    }
}
