"""Requests that no well-behaved client would send, and what a service must still be after them."""
