package limit

import "testing"

func TestLimitReasons(t *testing.T) {
	for reason, want := range map[string][2]bool{
		"":                                     {false, false},
		"Priority":                             {false, false},
		"Resources":                            {false, false},
		"MaxMemPerLimit":                       {false, false},
		"QOSMaxJobsPerUserLimit":               {true, false},
		"AssocGrpGRES":                         {true, false},
		"AssocMaxJobsLimit":                    {true, false},
		"QOSMaxGRESPerUser":                    {true, false},
		"MaxGRESPerAccount":                    {true, false},
		"JobArrayTaskLimit":                    {true, false},
		"PartitionDown":                        {true, false},
		"PartitionInactive":                    {true, false},
		"PartitionTimeLimit":                   {true, true},
		"ReqNodeNotAvail":                      {false, false},
		"ReqNodeNotAvail, UnavailableNodes:n1": {false, false},
		"ReqNodeNotAvail, Reserved for maintenance":                                                   {true, false},
		"ReqNodeNotAvail, May be reserved for other job":                                              {true, false},
		"Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": {true, false},
		"AssocMaxCpuPerJobLimit":                                                                      {true, true},
		"QOSMaxGRESPerNode":                                                                           {true, true},
		"QOSMinGRES":                                                                                  {true, true},
		"QOSMaxWallDurationPerJobLimit":                                                               {true, true},
	} {
		if is, forever := Reason(reason); is != want[0] || forever != want[1] {
			t.Errorf("%q: %v, %v", reason, is, forever)
		}
	}
}

// What an operator has closed no job's end opens.
func TestClosedIsNotOpenedByAnEnd(t *testing.T) {
	for reason, want := range map[string]int{"PartitionDown": 0, "ReqNodeNotAvail, Reserved for maintenance": 0, "AssocGrpJobsLimit": 1} {
		if got := (&Limit{reason: reason, of: class{user: "ann"}}).frees(holder{}); got != want {
			t.Errorf("%q: %d", reason, got)
		}
	}
}
