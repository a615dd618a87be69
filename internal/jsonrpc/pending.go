package jsonrpc

// pending is the table of exchanges that wait for an answer, by id. Ids come from one counter.
type pending struct {
	of   map[uint64]*Exchange
	last uint64
}

// add stores x with a new id.
func (p *pending) add(x *Exchange) {
	if p.of == nil {
		p.of = map[uint64]*Exchange{}
	}
	p.last++
	x.id = p.last
	p.of[x.id] = x
}

// remove removes the exchange with this id and returns it, or nil if the id is unknown. The caller delivers its reply.
func (p *pending) remove(id uint64) *Exchange {
	x := p.of[id]
	delete(p.of, id)
	return x
}

// shrink releases the memory of an empty table.
func (p *pending) shrink() {
	if len(p.of) == 0 {
		p.of = nil
	}
}
