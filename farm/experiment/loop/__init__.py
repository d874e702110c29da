"""The closed loop: experiments that a farm runs by itself."""
