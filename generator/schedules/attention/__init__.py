"""What flash decode and attention by wgmma share: their program, knobs, variants, writer."""
