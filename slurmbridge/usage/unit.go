package usage

import (
	"math"
	"strconv"
)

// Unit is the unit in which a sum is shown.
type Unit struct {
	Name       string  // "h"
	Noun       string  // of GPU time: "GPU-hours"
	perLargest float64 // this many make one of the largest unit
}

var (
	times    = []Unit{{"h", "GPU-hours", 1}, {"min", "GPU-minutes", 60}, {"s", "GPU-seconds", 3600}}
	energies = []Unit{{"kWh", "", 1}, {"Wh", "", 1000}}
)

// HoursFor returns the unit in which largest, a table's largest sum in hours, has at least two digits before the point.
func HoursFor(largest float64) Unit { return fit(times, largest) }

func fit(units []Unit, largest float64) Unit {
	for _, u := range units[:len(units)-1] {
		if math.Abs(largest)*u.perLargest >= 10 {
			return u
		}
	}
	if largest == 0 {
		return units[0]
	}
	return units[len(units)-1]
}

// Text is a sum in the unit, without the unit's name. A sum that would round to 0 is "<0.1".
func (u Unit) Text(sum float64) string {
	v := sum * u.perLargest
	text := strconv.FormatFloat(v, 'f', 1, 64)
	switch {
	case v == 0:
		return "0"
	case text == "0.0":
		return "<0.1"
	case text == "-0.0":
		return ">-0.1"
	default:
		return text
	}
}

// Cell is Text, or "" for an unknown sum (nil).
func (u Unit) Cell(sum *float64) string {
	if sum == nil {
		return ""
	}
	return u.Text(*sum)
}

// Of is Cell with the unit's name appended.
func (u Unit) Of(sum *float64) string {
	if sum == nil {
		return ""
	}
	return u.Text(*sum) + " " + u.Name
}
