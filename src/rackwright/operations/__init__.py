"""One module for each concern: decisions, declared once, run by pyinfra and by the planner alike."""
