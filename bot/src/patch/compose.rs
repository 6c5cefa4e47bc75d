//! Trees from trees: a tree with some paths set to other entries or taken out. The rest is kept as it is.

use std::collections::BTreeMap;

use git2::{ObjectType, Oid, Repository, Tree};

use super::Mode;

/// One path of a tree and what shall be there.
#[derive(Debug, Clone)]
pub(crate) struct Swap {
    /// The path, with `/`.
    pub(crate) path: String,
    /// The entry, or none to take it out.
    pub(crate) to: Option<(Oid, Mode)>,
}

#[derive(Default)]
struct Node<'s> {
    swap: Option<&'s Swap>,
    below: BTreeMap<&'s str, Node<'s>>,
}

/// Writes the tree that results from the swaps. A folder that becomes empty disappears, as git has none.
pub(crate) fn compose(
    repository: &Repository,
    tree: &Tree<'_>,
    swaps: &[Swap],
) -> Result<Oid, git2::Error> {
    let mut root = Node::default();
    for swap in swaps {
        let mut node = &mut root;
        for part in swap.path.split('/') {
            node = node.below.entry(part).or_default();
        }
        node.swap = Some(swap);
    }
    write(repository, Some(tree), &root)
}

fn write(
    repository: &Repository,
    tree: Option<&Tree<'_>>,
    node: &Node<'_>,
) -> Result<Oid, git2::Error> {
    let mut builder = repository.treebuilder(tree)?;
    for (name, node) in &node.below {
        if let Some((id, mode)) = node.swap.and_then(|swap| swap.to) {
            builder.insert(name, id, mode.octal() as i32)?;
            continue;
        }
        let there = builder.get(name)?.map(|entry| (entry.id(), entry.kind()));
        let inner = match there {
            Some((id, Some(ObjectType::Tree))) if node.swap.is_none() => {
                Some(repository.find_tree(id)?)
            }
            Some(_) => {
                builder.remove(name)?;
                None
            }
            None => None,
        };
        if node.below.is_empty() {
            continue;
        }
        let written = write(repository, inner.as_ref(), node)?;
        if repository.find_tree(written)?.is_empty() {
            if inner.is_some() {
                builder.remove(name)?;
            }
        } else {
            builder.insert(name, written, 0o040_000)?;
        }
    }
    builder.write()
}
