"""Learning which way a thread block should go, advice, and its evaluation.

scikit-learn trains; a trained advisor needs NumPy alone.
"""
