package history

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestApplicationsSeenOnce(t *testing.T) {
	jobs := [][2]string{{"ann", "md"}, {"ann", "md"}, {"bob", "md"}, {"bob", "x-1"}, {"bob", "x-2"}, {"bob", ""}}
	s := CountSeen(len(jobs), func(i int) (user, app string) { return jobs[i][0], jobs[i][1] })
	must.Equal(t, s, Seen{Jobs: 5, Once: 3}, "counted")
	must.Equal(t, s.String(),
		"3 jobs of 5 ran an application that was seen no second time; slurmbridge profiles identify SCRIPT "+
			"says what tells scripts apart", "said")
}
