//! A verified delivery becomes a row and, where it asks for a look at an issue, a job: one transaction.
