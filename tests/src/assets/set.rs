//! All programs of a lab in one folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::modules::MODULES;

/// A set that no lab has used for this time is removed.
const LIFE: Duration = Duration::from_hours(30 * 24);

/// Returns the folder with every program of these folders; ready programs take precedence.
pub fn make(cache: &Path, folders: &[PathBuf], ready: Option<&Path>) -> Result<PathBuf> {
    let mut sources = Vec::new();
    let mut key = Sha256::new();
    for name in MODULES.iter().flat_map(|module| module.outputs) {
        let folders = ready.into_iter().chain(folders.iter().map(PathBuf::as_path));
        let Some(source) = folders
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
        else {
            bail!("the program {name} was neither built nor found among the ready ones");
        };
        let data =
            fs::metadata(&source).with_context(|| format!("read the metadata of {}", source.display()))?;
        key.update(format!(
            "{} {} {:?}\n",
            source.display(),
            data.len(),
            data.modified().ok()
        ));
        sources.push((*name, source));
    }
    let key = format!("{:x}", key.finalize());
    let sets = cache.join("sets");
    let set = sets.join(&key[..16]);
    if set.is_dir() {
        touch(&set);
        return Ok(set);
    }
    let temporary = cache.join("building").join("set");
    if temporary.exists() {
        fs::remove_dir_all(&temporary)
            .with_context(|| format!("remove the incomplete {}", temporary.display()))?;
    }
    for folder in [&sets, &temporary] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    for (name, source) in sources {
        link_or_copy(&source, &temporary.join(name))?;
    }
    fs::rename(&temporary, &set)
        .with_context(|| format!("rename {} to {}", temporary.display(), set.display()))?;
    remove_old(&sets, &set)?;
    Ok(set)
}

/// A hard link, or a copy if a link is not possible.
fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    let real = from
        .canonicalize()
        .with_context(|| format!("find {}", from.display()))?;
    if fs::hard_link(&real, to).is_ok() {
        return Ok(());
    }
    let new = to.with_extension("new");
    fs::copy(&real, &new)
        .and_then(|_| fs::rename(&new, to))
        .with_context(|| format!("copy {} to {}", real.display(), to.display()))
}

/// A failure only loses the age.
fn touch(folder: &Path) {
    if let Ok(file) = fs::File::open(folder) {
        file.set_modified(SystemTime::now()).ok();
    }
}

fn remove_old(sets: &Path, kept: &Path) -> Result<()> {
    for entry in fs::read_dir(sets).with_context(|| format!("list {}", sets.display()))? {
        let path = entry?.path();
        let age = fs::metadata(&path)
            .and_then(|data| data.modified())
            .ok()
            .and_then(|time| time.elapsed().ok());
        if path != kept && age.is_some_and(|age| age > LIFE) {
            fs::remove_dir_all(&path).with_context(|| format!("remove the old {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programs(folder: &Path, contents: &str) {
        fs::create_dir_all(folder).unwrap();
        for name in MODULES.iter().flat_map(|module| module.outputs) {
            fs::write(folder.join(name), contents).unwrap();
        }
    }

    #[test]
    fn ready_programs_take_precedence_and_the_rest_is_built() {
        let folder = tempfile::tempdir().unwrap();
        let (built, ready) = (folder.path().join("b"), folder.path().join("r"));
        programs(&built, "built");
        fs::create_dir(&ready).unwrap();
        fs::write(ready.join("etcd"), "ready").unwrap();
        let set = make(folder.path(), std::slice::from_ref(&built), Some(&ready)).unwrap();
        assert_eq!(fs::read_to_string(set.join("etcd")).unwrap(), "ready");
        assert_eq!(fs::read_to_string(set.join("kubelet")).unwrap(), "built");
        assert_ne!(make(folder.path(), &[built], None).unwrap(), set);
    }

    #[test]
    fn a_set_outlives_the_build_that_it_was_made_from() {
        let folder = tempfile::tempdir().unwrap();
        let built = folder.path().join("b");
        programs(&built, "built");
        let set = make(folder.path(), std::slice::from_ref(&built), None).unwrap();
        fs::remove_dir_all(&built).unwrap();
        assert_eq!(fs::read_to_string(set.join("kubelet")).unwrap(), "built");
        let message = make(folder.path(), &[], None).unwrap_err().to_string();
        assert!(message.contains("was neither built nor found"), "{message}");
    }
}
