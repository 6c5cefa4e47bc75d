//! What may cross: named rules over a patch. Pure.
