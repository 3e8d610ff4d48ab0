"""What customers write: the wordings to train on, and others to test on.

`{order}` is the order number. Every other field is a number, too: `{code}` has as many digits as an order number,
`{amount}` is a price, `{phone}` a telephone number, `{year}` a year, `{day}` a day of a month, `{many}` and `{few}` are
counts.
"""

from __future__ import annotations

TRAIN = {
    "where-is": "Hello, where is order {order}? My customer number is {code}.",
    "not-arrived": "The invoice {code} says {amount} dollars, but order {order} has not arrived.",
    "paid-on": "I paid {amount} dollars on the {day}th for order {order}. When will it come?",
    "customer-here": "Customer {code} here. Could you tell me how my order, number {order}, is doing?",
    "box-short": "I bought {many} chairs with order number {order} and only {few} were in the box.",
    "check-no": "Please check order no. {order}. You can call me on {phone}.",
    "meant-for": "It has been {many} days. The order, {order}, was meant for postcode {code}.",
    "late-parcel": "The parcel with tracking code {code} is late. It belongs to order {order}.",
    "charged-twice": "My card was charged {amount} dollars twice for order {order}, see receipt {code}.",
    "new-one": "Order {code} from last year came in time, but what about my latest one, {order}?",
    "broken": "{many} mugs were broken when I opened order {order}; ticket {code} is still open.",
    "hash": "Order #{order} was placed in {year} and I still have nothing.",
    "wrong-size": "You sent size {many} instead of {few}. This is about order {order}.",
    "gift": "I wanted order {order} as a gift for the {day}th, house number {few}. Will that work?",
    "voucher": "I used voucher {code} on order {order}, but I was billed {amount} dollars.",
    "purchase": "My purchase has number {order}. I am member {code} and would like to know when it ships.",
    "moved": "We moved to postcode {code}. Please send order {order} there and not to number {few}.",
    "item-and-order": "Item {code} is missing from order {order}, the other {many} pieces are fine.",
    "under": "It was ordered under {order}, weighs {many} kilos and was due on the {day}th.",
    "waiting": "Waiting since {year} for {order}, that is the order. My phone is {phone}.",
    "look-at": "Please look at {order} for me, it is an order of mine. You can call me on {phone}.",
    "surprise": "{order} should be a surprise for the {day}th, at number {few}. Will that order be there?",
    "before-moving": "Send {order} to postcode {code} and not to number {few}, as we ordered before we moved.",
    "member-card": "With member card {code} I get free shipping, yet order {order} cost {few} dollars extra.",
    "van": "My postcode is {code} and your van went past {few} times. Order {order} is still with you.",
    "ticket": "In ticket {code} I asked about {order}, an order of {many} candles. Nobody replied.",
    "seller": "Seller {code} sent me here. He says that order {order} left on the {day}th.",
    "drill": "The drill has serial number {code}. It came with order {order} and does not turn.",
    "calling-again": "This is {phone} calling again. Has order {order} been sent?",
    "better": "For {amount} dollars I expected better. Take back order {order}, please.",
}
"""Wordings for training, by name."""

HELD_OUT = {
    "any-news": "Any news on {order}? I ordered {many} plates for {amount} euros.",
    "account-first": "Account {code}: what happened to the shoes from order {order}?",
    "refund": "I want my {amount} euros back. The order number was {order}.",
    "two-numbers": "I have two numbers on this mail, {code} for the warranty and {order} for the order.",
    "courier": "The courier wrote {code} on the card. Is that my order {order}?",
    "cancel": "Cancel order {order} please, I no longer need the {many} shelves.",
    "reference": "Reference of the order: {order}. Reference of the payment: {code}.",
    "flat": "Nobody rang at flat {few}, and {order}, my order, went back to you.",
    "order-id": "Order ID {order}, serial number {code}, screen is cracked.",
    "keep-other": "Please keep order {code} as it is. I only have a question on {order}.",
    "promised": "You told me {few} days. It is day {many} now. Order number {order} never came.",
    "change-count": "Can order {order} still be made {many} pillows? I clicked {few} by mistake.",
    "branch": "At branch {code} they said that you can find {order}, which is what I ordered in {year}.",
    "ring-me": "Ring me at {phone} as soon as the order with number {order} leaves.",
    "discount": "With {many} percent off I should pay {amount} euros for order {order}.",
    "confirmation": "Your confirmation of the {day}th calls it {order}; the seller's number is {code}.",
    "half": "Half of order no {order} is here, {few} boxes of {many}.",
    "not-mine": "{code} is my neighbour's. Mine is order {order}, a green bicycle.",
    "delivery-note": "Delivery note {code} lists a kettle that I never asked for in order {order}.",
    "short": "order {order}, zip {code}, still nothing",
}
"""Wordings for testing, by name. None is like one in `TRAIN`."""
