"""What is done with stored programs: compiling, explaining, measuring again."""
