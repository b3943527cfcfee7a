"""Corrections as an imported experiment file spells them."""


def weight(level, action="truncate", lower=None, upper=None, **unless_true):
    return {"level": level, "action": action, "lower": lower, "upper": upper, **unless_true}


def keep(level, statistic, lower, upper, when="all"):
    return {"level": level, "statistic": statistic, "lower": lower, "upper": upper, "when": when}


def correction(weight, reject=None, ratio="old", normalize="none", denominator="original"):
    return {"ratio": ratio, "weight": weight, "reject": reject or {}, "normalize": normalize, "denominator": denominator}


NONE = weight(None)
