"""Attention by wgmma: query rows on the M side, keys by producer warps; many query rows."""
