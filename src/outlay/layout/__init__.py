"""Where every array should live: rules, strategies, and the plan they resolve to. Pure: no devices, no compilation."""
