"""Models and pure functions `str -> model`. No import of pyinfra here."""
