package usage

import (
	"math"
	"strconv"
)

// Unit is what a sum is told in.
type Unit struct {
	Name string  // "h"
	Noun string  // of GPU time: "GPU-hours"
	per  float64 // of them one of the largest unit is
}

var (
	times    = []Unit{{"h", "GPU-hours", 1}, {"min", "GPU-minutes", 60}, {"s", "GPU-seconds", 3600}}
	energies = []Unit{{"kWh", "", 1}, {"Wh", "", 1000}}
)

// HoursFor is the unit in which a sum of that many hours, the largest of a table, has two digits in front of the point.
func HoursFor(largest float64) Unit { return fit(times, largest) }

func fit(units []Unit, largest float64) Unit {
	for _, u := range units[:len(units)-1] {
		if math.Abs(largest)*u.per >= 10 {
			return u
		}
	}
	if largest == 0 {
		return units[0]
	}
	return units[len(units)-1]
}

// Text is a sum in the unit, without its name. What is little more than nothing isn't nothing.
func (u Unit) Text(sum float64) string {
	v := sum * u.per
	switch text := strconv.FormatFloat(v, 'f', 1, 64); {
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

// Cell is Text, "" = the sum isn't known.
func (u Unit) Cell(sum *float64) string {
	if sum == nil {
		return ""
	}
	return u.Text(*sum)
}

// Of is Cell with the unit's name.
func (u Unit) Of(sum *float64) string {
	if sum == nil {
		return ""
	}
	return u.Text(*sum) + " " + u.Name
}
