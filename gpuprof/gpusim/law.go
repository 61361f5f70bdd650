package gpusim

type demand struct{ GPU, Core, PCIe, StepS float64 }

type law struct{ fair bool }

func (l *law) Slowdowns(dst []float64, d []demand) []float64 {
	dst = dst[:0]
	sum := 0.0
	for _, x := range d {
		sum += x.GPU
	}
	for range d {
		dst = append(dst, max(1, sum))
	}
	return dst
}

var lawMPS, lawTimeSlice = &law{}, &law{fair: true}
