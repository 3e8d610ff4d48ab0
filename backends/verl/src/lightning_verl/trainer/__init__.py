"""The trainer: runs in the verl environment as `python -m lightning_verl.trainer`. Only here are verl and Ray imported."""
