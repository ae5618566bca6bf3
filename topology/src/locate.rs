//! Which topology file a process means. Where to look is a pure function of what the process knows; only
//! [`Locate::from_process`] and [`Locate::find`] ask the system.

use std::env;
use std::fmt;
use std::path::{Path, PathBuf};

/// What decides where to look. An answer given by hand, flag or variable, is the only place looked at: another
/// file must not step in for one that was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Locate {
    /// `--topology`.
    pub flag: Option<PathBuf>,
    /// `LAGUNA_TOPOLOGY`; empty counts as unset.
    pub variable: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`; counts only if absolute, as its specification says.
    pub xdg_config_home: Option<PathBuf>,
    /// The user's home folder.
    pub home: Option<PathBuf>,
    /// Whether macOS's own place for settings counts too.
    pub macos: bool,
}

/// No topology file in any place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotFound {
    /// Every file looked for, in order: how the place is known, and its path.
    pub looked_at: Vec<(Place, PathBuf)>,
}

/// How a place to look at is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// `--topology`.
    Flag,
    /// `LAGUNA_TOPOLOGY`.
    Variable,
    /// The folder the process runs in.
    WorkingFolder,
    /// The user's settings.
    Settings,
}

impl Locate {
    /// What this process knows: its environment, its system, and the flag it was given.
    pub fn from_process(flag: Option<PathBuf>) -> Self {
        Self {
            flag,
            variable: env::var_os(VARIABLE).map(PathBuf::from),
            xdg_config_home: env::var_os("XDG_CONFIG_HOME").map(PathBuf::from),
            home: env::home_dir(),
            macos: cfg!(target_os = "macos"),
        }
    }

    /// Every file to look for, in order.
    pub fn places(&self) -> Vec<(Place, PathBuf)> {
        let given = |path: &Option<PathBuf>| path.clone().filter(|path| !path.as_os_str().is_empty());
        if let Some(path) = given(&self.flag) {
            return vec![(Place::Flag, path)];
        }
        if let Some(path) = given(&self.variable) {
            return vec![(Place::Variable, path)];
        }
        let home = given(&self.home);
        let settings = self.xdg_config_home.clone().filter(|path| path.is_absolute());
        let settings = settings.or_else(|| home.as_ref().map(|home| home.join(".config")));
        let library = home.filter(|_| self.macos).map(|home| home.join("Library/Application Support"));
        let mut places = vec![(Place::WorkingFolder, Path::new(".").join(FILE))];
        places.extend(
            settings.into_iter().chain(library).map(|dir| (Place::Settings, dir.join("laguna").join(FILE))),
        );
        places
    }

    /// The first file that exists.
    ///
    /// # Errors
    ///
    /// Every place looked at.
    pub fn find(&self) -> Result<PathBuf, NotFound> {
        self.find_with(Path::exists)
    }

    fn find_with(&self, exists: impl Fn(&Path) -> bool) -> Result<PathBuf, NotFound> {
        let looked_at = self.places();
        match looked_at.iter().find(|(_, path)| exists(path)) {
            Some((_, path)) => Ok(path.clone()),
            None => Err(NotFound { looked_at }),
        }
    }
}

impl fmt::Display for NotFound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.looked_at.as_slice() {
            [(Place::Flag, path)] => {
                return write!(f, "there is no topology file {} (from --topology)", path.display());
            }
            [(Place::Variable, path)] => {
                return write!(f, "there is no topology file {} (from {VARIABLE})", path.display());
            }
            _ => {}
        }
        write!(f, "no topology file found: --topology and {VARIABLE} are not set, and there is none of")?;
        self.looked_at.iter().try_for_each(|(_, path)| write!(f, "\n  {}", path.display()))
    }
}

impl std::error::Error for NotFound {}

const VARIABLE: &str = "LAGUNA_TOPOLOGY";
const FILE: &str = "topology.toml";

#[cfg(test)]
mod tests {
    use super::*;

    fn everything() -> Locate {
        Locate {
            flag: Some("flag.toml".into()),
            variable: Some("variable.toml".into()),
            xdg_config_home: Some("/xdg".into()),
            home: Some("/home/me".into()),
            macos: true,
        }
    }

    fn paths(locate: &Locate) -> Vec<String> {
        locate.places().into_iter().map(|(_, path)| path.display().to_string()).collect()
    }

    #[test]
    fn what_was_asked_for_is_the_only_place() {
        let mut locate = everything();
        assert_eq!(paths(&locate), ["flag.toml"]);
        locate.flag = None;
        assert_eq!(paths(&locate), ["variable.toml"]);
        let error = locate.find_with(|_| false).unwrap_err().to_string();
        assert_eq!(error, "there is no topology file variable.toml (from LAGUNA_TOPOLOGY)");
    }

    #[test]
    fn settings_follow_the_working_folder() {
        let mut locate = Locate { flag: None, variable: Some("".into()), ..everything() };
        let library = "/home/me/Library/Application Support/laguna/topology.toml";
        assert_eq!(paths(&locate), ["./topology.toml", "/xdg/laguna/topology.toml", library]);
        locate.xdg_config_home = Some("not/absolute".into());
        locate.macos = false;
        assert_eq!(paths(&locate), ["./topology.toml", "/home/me/.config/laguna/topology.toml"]);
        let found = locate.find_with(|path| path.starts_with("/home/me"));
        assert_eq!(found, Ok("/home/me/.config/laguna/topology.toml".into()));
        let error = locate.find_with(|_| false).unwrap_err().to_string();
        assert!(error.ends_with("\n  ./topology.toml\n  /home/me/.config/laguna/topology.toml"), "{error}");
        assert_eq!(paths(&Locate::default()), ["./topology.toml"]);
    }
}
