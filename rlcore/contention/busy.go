package contention

// Busy returns the fraction of time in which any of the sharers' kernels runs,
// given their slowdowns. A process whose kernels take a fraction u of its time
// alone leaves the GPU idle for (1−u) of that time however long the kernels get,
// so slowed by s it leaves it idle for (1−u)/s of the time; under MPS the sharers
// overlap independently. Empty: 0.
func Busy(d []Demand, slow []float64) float64 {
	idle := 1.0
	for i := range d {
		idle *= (1 - d[i].GPU) / slow[i]
	}
	return 1 - idle
}
