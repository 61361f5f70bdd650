package compare

import (
	"fmt"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/chart"
)

// picture draws the GPU's two timelines as a file: whole, and shared.
func (r *demoReport) picture() []byte {
	began := time.Date(2000, 1, 1, 0, 0, 0, 0, time.Local) // the axis shows hours and minutes since midnight
	after := func(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }
	end := after(max(r.Plain.MakespanS, r.Bridged.MakespanS))
	row := func(name string, f *figures) chart.Row {
		const note = "the last of %d jobs ends after %.0f min, a job on average after %.0f min"
		row := chart.Row{Name: name, Note: fmt.Sprintf(note, len(f.Runs), f.MakespanS/60, f.MeanTurnaroundS/60)}
		for _, x := range f.Runs {
			row.Spans = append(row.Spans, chart.Span{
				Job: strconv.Itoa(x.Job + 1), Detail: fmt.Sprintf("job %d, %s: %.0f s", x.Job+1, x.App, x.EndS-x.StartS),
				From: after(x.StartS), To: after(x.EndS),
			})
		}
		return row
	}
	rows := []chart.Row{row("whole GPUs", r.Plain), row("shared", r.Bridged)}
	t := chart.Timeline{
		Title: "The same jobs on one GPU, whole and shared", From: began, Now: end, To: end, Rows: rows,
		Desc: fmt.Sprintf("%d jobs one after the other, and the same jobs under slurmbridge", len(r.Jobs)),
	}
	return t.File(1000,
		"Jobs on a simulated Titan Xp over its time, h:min. Grey: alone; green: two share it; violet: three or more.")
}
